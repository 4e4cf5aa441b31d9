"""Pooling: what ONNX and torch say of it, and what is refused; the engine's own tests are cpu/test_windows.py."""

import numpy as np
import pytest
from helpers import has_module

import numbaprims
from numbaprims.dispatch import registry

GRID = np.arange(1, 26, dtype=np.float32).reshape(1, 1, 5, 5)

#: Function, operand, arguments and result of examples worked out by hand from the text of ONNX's operators.
ONNX = [
    ("max_pool", GRID, (5,), {"stride": 1, "padding": 2},
     [[13, 14, 15, 15, 15], [18, 19, 20, 20, 20], [23, 24, 25, 25, 25], [23, 24, 25, 25, 25], [23, 24, 25, 25, 25]]),
    ("max_pool", GRID, (3,), {"stride": 2, "padding": "same"}, [[7, 9, 10], [17, 19, 20], [22, 24, 25]]),
    ("max_pool", GRID, (2,), {}, [[7, 9], [17, 19]]),
    ("max_pool", GRID[..., :4, :4], (3,), {"stride": 2, "ceil_mode": True}, [[13, 14], [18, 19]]),
    ("max_pool", GRID[..., :4, :4], (2,), {"stride": 1, "dilation": 2}, [[13, 14], [18, 19]]),
    ("avg_pool", GRID, (5,), {"stride": 1, "padding": 2, "count_include_pad": False},
     [[7, 7.5, 8, 8.5, 9], [9.5, 10, 10.5, 11, 11.5], [12, 12.5, 13, 13.5, 14], [14.5, 15, 15.5, 16, 16.5],
      [17, 17.5, 18, 18.5, 19]]),
    ("avg_pool", GRID, (3,), {"stride": 2, "padding": 1}, [[16 / 9, 33 / 9, 28 / 9], [69 / 9, 13, 87 / 9],
     [76 / 9, 123 / 9, 88 / 9]]),
    # the last windows reach one row and column beyond, which no average counts
    ("avg_pool", GRID[..., :4, :4], (3,), {"stride": 2, "ceil_mode": True}, [[7, 8.5], [14.5, 16]]),
    ("avg_pool", GRID[..., :2, :2], (3,), {"stride": 2, "ceil_mode": True}, [[4]]),
    ("max_pool", GRID[..., :2, :4], (3,), {"stride": 2, "ceil_mode": True}, [[8, 9]]),
    ("lp_pool", GRID[..., :2, :4], (2,), {"p": 1}, [[16, 24]]),
    ("lp_pool", GRID[..., :2, :4], (2,), {}, [[np.sqrt(1 + 4 + 36 + 49), np.sqrt(9 + 16 + 64 + 81)]]),
    ("global_max_pool", GRID, (), {}, [[25]]),
    ("global_avg_pool", GRID, (), {}, [[13]]),
    ("adaptive_avg_pool", GRID, (2,), {}, [[7, 9], [17, 19]]),
    ("adaptive_max_pool", GRID, ((1, 3),), {}, [[22, 24, 25]]),
]  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name, x, args, words, want", ONNX, ids=[f"{case[0]}-{n}" for n, case in enumerate(ONNX)])
def test_examples_of_onnx(name, x, args, words, want, layout):
    last = layout == "NHWC"
    x = np.repeat(x, 3, axis=1) * np.float32([1, 2, 4]).reshape(1, 3, 1, 1)
    x = np.moveaxis(x, 1, -1).copy() if last else x
    y = getattr(numbaprims, name)(x, *args, layout=layout, **words)
    y = np.moveaxis(y, -1, 1) if last else y
    for channel, factor in enumerate((1, 2, 4)):
        np.testing.assert_allclose(y[0, channel], np.float32(want) * factor, rtol=3e-7)


def test_places_are_those_of_the_plane():
    x = np.float32([[[[3, 3, 1], [3, 3, 2], [0, 9, 9]]]])
    y, places = numbaprims.max_pool(x, 2, stride=1, return_indices=True)
    np.testing.assert_array_equal(places, [[[[0, 1], [7, 7]]]])
    assert places.dtype == np.int64 and (y == [[[[3, 3], [9, 9]]]]).all()
    x = np.float32([[[1, np.nan, 2, np.nan, -np.inf, -np.inf]]])
    y, places = numbaprims.max_pool(x, 2, return_indices=True)
    np.testing.assert_array_equal(places, [[[1, 3, 4]]])
    np.testing.assert_array_equal(y, [[[np.nan, np.nan, -np.inf]]])


def test_integers():
    x = np.int8([[[-128, 127, 1, 2, 3, 4]]])
    np.testing.assert_array_equal(numbaprims.max_pool(x, 2), np.int8([[[127, 2, 4]]]))
    # -0.5, 1.5 and 3.5: halves go to the even one
    np.testing.assert_array_equal(numbaprims.avg_pool(x, 2), np.int8([[[0, 2, 4]]]))


def test_out_and_indices(rng):
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    y, places = numbaprims.max_pool(x, 2, return_indices=True)
    out = np.empty_like(y)
    assert numbaprims.max_pool(x, 2, out=out) is out
    np.testing.assert_array_equal(out, y)
    want = numbaprims.max_pool_backward(y, x, 2)
    np.testing.assert_array_equal(numbaprims.max_pool_backward(y, None, 2, indices=places, size=(8, 8)), want)
    np.testing.assert_array_equal(numbaprims.max_pool_backward(y, x, 2, indices=places), want)


def test_indices_that_are_none_in_the_plane_are_left_out():
    indices = np.array([[[-1, 1, 4, 2**40]]])
    for device in ("cpu", "reference"):
        with numbaprims.config(device=device):
            dx = numbaprims.max_pool_backward(np.ones((1, 1, 4), np.float32), None, 1, indices=indices, size=4)
        assert dx.ravel().tolist() == [0, 1, 0, 0]


def test_empty_batches():
    x = np.zeros((0, 3, 8, 8), np.float32)
    assert numbaprims.max_pool(x, 2).shape == (0, 3, 4, 4)
    assert numbaprims.avg_pool_backward(np.zeros((0, 3, 4, 4), np.float32), (8, 8), 2).shape == x.shape


X = np.ones((1, 2, 6, 6), np.float32)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: numbaprims.max_pool(X[0, 0], 2), ValueError, "one to three dimensions"),
        (lambda: numbaprims.max_pool(X, 2, padding=2), ValueError, "half of a window"),
        (lambda: numbaprims.max_pool(X, 7), ValueError, "span 7 elements"),
        (lambda: numbaprims.max_pool(X, 8, stride=2, ceil_mode=True), ValueError, "span 8 elements"),
        (lambda: numbaprims.avg_pool(X, 2, stride=2**63), ValueError, "stride is .*; 2147483647 is the most"),
        (lambda: numbaprims.lp_pool(X, 1, dilation=2**63), ValueError, "dilation is .*; 2147483647 is the most"),
        (lambda: numbaprims.max_pool(X[..., :1, :1], 2, dilation=2, padding=1), ValueError, "no element"),
        (lambda: numbaprims.max_pool(X[..., :0], 2), ValueError, "one element at least"),
        (lambda: numbaprims.max_pool(X, 0), ValueError, "at least 1"),
        (lambda: numbaprims.max_pool(X, 2.5), TypeError, "integers"),
        (lambda: numbaprims.max_pool(X, (2, 2, 2)), ValueError, "kernel_size"),
        (lambda: numbaprims.max_pool(X, 2, layout="HWCN"), ValueError, "layout"),
        (lambda: numbaprims.max_pool(X.astype(np.int32), 2), TypeError, "int8"),
        (lambda: numbaprims.lp_pool(X.astype(np.int8), 2), TypeError, "lp_pool takes"),
        (lambda: numbaprims.lp_pool(X, 2, p=0), ValueError, "p is 0"),
        (lambda: numbaprims.adaptive_avg_pool(X, 0), ValueError, "output_size"),
        (lambda: numbaprims.adaptive_max_pool(X, None), TypeError, "output_size is None"),
        (lambda: numbaprims.max_pool(X, None), TypeError, "kernel_size is None"),
        (lambda: numbaprims.max_pool(X, 2, out=X), ValueError, "out"),
        (lambda: numbaprims.max_pool_backward(X, None, 2), ValueError, "indices and size"),
        (lambda: numbaprims.max_pool_backward(X, X, 2), ValueError, "must have shape"),
        (lambda: numbaprims.max_pool_backward(X, None, 1, indices=X, size=6), TypeError, "int64"),
        (lambda: numbaprims.avg_pool_backward(X, (6,), 2), ValueError, "size"),
    ],
)
def test_what_cannot_be_computed_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_tensors_and_torchs_results(rng):
    import torch
    import torch.nn.functional as F

    x = torch.tensor(rng.standard_normal((2, 5, 13, 21)), dtype=torch.float32)
    y, places = numbaprims.max_pool(x, 3, stride=2, padding=1, ceil_mode=True, return_indices=True)
    want, where = F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
    assert torch.equal(y, want) and torch.equal(places, where)
    assert torch.equal(numbaprims.max_pool(x.bfloat16(), 3), F.max_pool2d(x.bfloat16(), 3))
    last = x.permute(0, 2, 3, 1).contiguous()
    found = numbaprims.avg_pool(last, (3, 2), layout="NHWC").permute(0, 3, 1, 2)
    torch.testing.assert_close(found, F.avg_pool2d(x, (3, 2)))
    torch.testing.assert_close(numbaprims.adaptive_avg_pool(x, (5, 8)), F.adaptive_avg_pool2d(x, (5, 8)))


def test_solvers_are_the_engines():
    assert [solver.name for solver in registry.solvers("pooling", "cpu")][-1] == "naive"


@pytest.mark.cpu
def test_whole_planes_take_the_way_of_their_own():
    """Their windows have no kernel that an estimate could count."""
    x = np.zeros((1, 300, 7, 7), np.float32)
    for name, args in (
        ("global_avg_pool", (x,)),
        ("global_max_pool", (x,)),
        ("adaptive_avg_pool", (x, 1)),
        ("global_avg_pool_backward", (x[..., :1, :1].copy(), (7, 7))),
    ):
        assert numbaprims.explain(name, *args).chosen.solver == "whole", name
