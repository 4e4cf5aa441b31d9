"""What descriptions of layers, `numbaprims.fuse` and fused networks refuse, and in which words."""

import numpy as np
import pytest
from fusion_cases import RELU, array

import numbaprims
from numbaprims.fusion.layers import (
    Activation,
    AvgPool,
    BatchNorm,
    Bias,
    Call,
    Concat,
    Conv,
    Linear,
    MaxPool,
    PReLU,
    Residual,
    Scale,
)

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def by_definition():
    with numbaprims.config(device="reference"):
        yield


ONE = np.ones(3, np.float32)


@pytest.mark.parametrize("make, error, says", [
    (lambda: MaxPool(0), ValueError, "kernel_size is 0; it must be at least 1"),
    (lambda: MaxPool(2.5), TypeError, "kernel_size is 2.5; it must be made of integers"),
    (lambda: AvgPool(2, -1), ValueError, "stride is -1"),
    (lambda: MaxPool(2, padding="full"), ValueError, "padding is 'full'"),
    (lambda: MaxPool(2, dilation=0), ValueError, "dilation is 0"),
    (lambda: Activation("gelu", slope=1), TypeError, "gelu got 'slope'"),
    (lambda: Activation("glu"), ValueError, "wrap numbaprims.glu in Call"),
    (lambda: Activation("prelu", weight=1), ValueError, "use PReLU"),
    (lambda: BatchNorm(ONE, ONE, ONE, ONE[:2]), ValueError, r"var has shape \(2,\) and mean \(3,\)"),
    (lambda: BatchNorm(ONE, ONE, ONE, ONE, "a"), TypeError, "eps is 'a'"),
    (lambda: Scale(np.ones((2, 2))), ValueError, "scale is a float64 array .2, 2.; it must have 0 or 1 dim"),
    (lambda: Bias(np.ones(3, np.int32)), TypeError, "bias is a int32 array .3,.; it must be of floating point"),
    (lambda: Conv(np.ones((4, 3, 1, 1)), ONE), ValueError, "bias has shape .3,.; weight .4, 3, 1, 1. takes .4,."),
    (lambda: Conv(ONE), ValueError, "weight is a float32 array .3,.; it must have 3 or 4 or 5 dimensions"),
    (lambda: Conv(np.ones((4, 3, 1, 1)), activation="what"), ValueError, "kind is 'what'"),
    (lambda: Linear(np.ones((4, 3, 1))), ValueError, "it must have 2 dimensions"),
    (lambda: Call(3), TypeError, "function is 3"),
    (lambda: Concat([]), TypeError, "branches is"),
])  # fmt: skip
def test_descriptions_refuse(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("made, words, error, says", [
    ([RELU, [RELU, "relu"]], {}, TypeError, r"layers\[1\]\[1\] is 'relu'; it must be a layer"),
    ([Residual([RELU, None])], {}, TypeError, r"layers\[0\].body\[1\] is None"),
    ([RELU, MaxPool(9)], {}, ValueError, r"layers\[1\], MaxPool\(kernel_size=9\) of an input .1, 3, 8, 8.: windows"),
    ([MaxPool(3, padding=2)], {}, ValueError, "padding is 2; at most half of a window"),
    ([BatchNorm(ONE[:2], None, ONE[:2], ONE[:2])], {}, ValueError, r"layers\[0\], BatchNorm\(2\)"),
    ([PReLU(ONE[:2])], {}, ValueError, r"layers\[0\], PReLU.*weight is a float32 array .2,."),
    ([Conv(np.ones((4, 2, 1, 1)))], {}, ValueError, r"layers\[0\], Conv.*x_shape has 3 channels"),
    ([Residual([MaxPool(2)])], {}, ValueError, r"the body gives \(1, 3, 4, 4\) and the shortcut \(1, 3, 8, 8\)"),
    ([Call(len)], {}, TypeError, r"layers\[0\], Call.*the function's result is a int"),
    ([Concat([[MaxPool(2)], ()])], {}, ValueError, "they may differ along dimension 1 only"),
    ([RELU], {"dtype": "int8"}, TypeError, "dtype is 'int8'; fuse takes float64"),
    ([RELU], {"layout": "NCW"}, ValueError, "layout is 'NCW'"),
    ([RELU], {"strategy": "two"}, ValueError, "strategy is 'two'; it must be one of 'auto'"),
    ([RELU], {"limit": -5}, ValueError, "limit is -5"),
    ([RELU], {"input_shape": (3,)}, ValueError, "input_shape is .3,."),
])  # fmt: skip
def test_networks_refuse(made, words, error, says):
    with pytest.raises(error, match=says):
        numbaprims.fuse(made, **{"input_shape": (1, 3, 8, 8), **words})


def test_calls_refuse():
    net = numbaprims.fuse([RELU, Call(np.copy)], (1, 3, 8, 8))
    x = array(1, 3, 8, 8)
    for wrong, error, says in [
        ({"x": x[:, :2]}, ValueError, "this plan takes .1, 3, 8, 8., with any number of images"),
        ({"x": x.astype(np.float64)}, TypeError, "this plan takes float32"),
        ({"x": x, "out": x}, ValueError, "out shares memory with x"),
        ({"x": x, "out": x[:, :2].copy()}, ValueError, "the result has shape .1, 3, 8, 8."),
        ({"x": x, "out": x.astype(np.float64)}, TypeError, "the result is float32"),
    ]:
        with pytest.raises(error, match=says):
            net(**wrong)
    only = numbaprims.fuse([RELU], (1, 3, 8, 8))
    expected = only(x)
    assert only(x, out=x) is x and np.array_equal(x, expected)
