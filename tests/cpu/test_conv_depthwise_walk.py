"""Depthwise convolutions by the walk of a stack, against the definition and the solver `depthwise`."""

import dataclasses
import types

import numpy as np
import pytest
from conv_cases import call_and_plan_agree
from helpers import NUMPY_FLOATS, from_float64, printed_with_threads

import numbaprims
from numbaprims.cpu.conv.depthwise.solver import Depthwise
from numbaprims.cpu.conv.depthwise.walk import DepthwiseWalk
from numbaprims.cpu.conv.direct.solver import Direct
from numbaprims.cpu.rates import profile
from numbaprims.dispatch.explain import problem_of

WALK = {"conv": "depthwise_walk"}
LAST = {"f64": 1e-14, "f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}
#: (images, channels, height, width), window, words of the call
CASES = {
    "3x3": ((2, 20, 9, 21), (3, 3), {"padding": 1}),
    "strided": ((1, 37, 12, 15), (3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilated": ((2, 16, 11, 18), (2, 3), {"dilation": (3, 2), "padding": (0, 2)}),
    "all padding": ((1, 5, 2, 3), (3, 3), {"padding": ((4, 1), (2, 5))}),
    "a row": ((3, 4, 1, 40), (1, 5), {"padding": (0, 2)}),
    "a column": ((1, 18, 7, 1), (3, 1), {"padding": (1, 0)}),
}


def arrays(case, dtype, layout):
    shape, window, words = CASES[case]
    rng = np.random.default_rng(len(case))
    c = shape[1]
    x, weight, bias = (rng.standard_normal(size) for size in (shape, (c, 1, *window), (c,)))
    x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "NHWC" else x
    return [from_float64(each, dtype) for each in (x, weight, bias)], {**words, "groups": c, "layout": layout}


@pytest.mark.parametrize("dtype", NUMPY_FLOATS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", CASES)
def test_the_definition(case, layout, dtype):
    """With a bias and an activation's numbers, in a call and by packed weights, which give the same bits."""
    given, words = arrays(case, dtype, layout)
    words["activation"] = ("clipped_relu", {"alpha": 0.75}) if case == "3x3" else "leaky_relu"
    call_and_plan_agree("depthwise_walk", given, dtype, LAST[dtype], **words)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_slices_and_what_lies_beside_them(layout):
    (x, weight, _), words = arrays("3x3", "f32", layout)
    wide = np.full((2, 30, 11, 40) if layout == "NCHW" else (2, 11, 40, 30), np.nan, np.float32)
    inside = np.s_[:, 3:23, 1:10, 5:26] if layout == "NCHW" else np.s_[:, 1:10, 5:26, 3:23]
    wide[inside] = x
    out = np.full(wide.shape, 7, np.float32)
    with numbaprims.config(algorithm=WALK):
        want = numbaprims.conv(x, weight, **words)
        numbaprims.conv(wide[inside], weight, **words, out=out[inside])
    np.testing.assert_array_equal(out[inside], want)
    out[inside] = 7
    assert (out == 7).all()


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
rng, found = np.random.default_rng(0), hashlib.sha256()
for shape, layout in (((3, 40, 30, 33), "NCHW"), ((2, 31, 35, 40), "NHWC")):
    x, w = rng.standard_normal(shape, np.float32), rng.standard_normal((40, 1, 3, 3), np.float32)
    with numbaprims.config(algorithm={"conv": "depthwise_walk"}):
        found.update(numbaprims.conv(x, w, padding=1, groups=40, layout=layout).tobytes())
print(found.hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


REFUSALS = {
    "its sums are ended by a bias and an activation, not by alpha or beta": {"alpha": 2.0},
    "it takes windows of up to 9 weights": {"size": (5, 5)},
    "the groups have several channels of x or of the result": {"groups": 3},
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_it_does_not_take(words):
    given = dict(REFUSALS[words])
    groups, size = given.pop("groups", 6), given.pop("size", (3, 3))
    x, weight = np.ones((1, 6, 8, 8), np.float32), np.ones((6, 6 // groups, *size), np.float32)
    with numbaprims.config(algorithm=WALK), pytest.raises(ValueError, match=words):
        numbaprims.conv(x, weight, groups=groups, **given)


def zen(number):
    isa, vector, l2 = ("avx512", 64, 1 << 20) if number == 4 else ("avx2", 32, 512 << 10)
    facts = {"isa": isa, "vector_bytes": vector, "l1d": 32 << 10, "l2": l2, "l3": 32 << 20}
    name = f"znver{number}"
    return types.SimpleNamespace(name=name, rates=profile(name, isa, vector, 32 << 20), **facts)


@pytest.mark.parametrize(
    "c, size, stride, layout, walks",
    [
        (32, 112, 1, "NCHW", True), (64, 112, 2, "NCHW", True), (512, 14, 1, "NCHW", False),
        (32, 112, 1, "NHWC", True), (128, 56, 1, "NHWC", True), (512, 14, 1, "NHWC", True),
        (256, 28, 1, "NHWC", True), (1024, 7, 1, "NCHW", False),
    ],
)  # fmt: skip
def test_layers_of_mobile_networks_on_a_zen_4(c, size, stride, layout, walks):
    """The estimates choose as the times that were measured there."""
    x = np.zeros((1, c, size, size) if layout == "NCHW" else (1, size, size, c), np.float32)
    weight = np.zeros((c, 1, 3, 3), np.float32)
    problem = problem_of("conv", x, weight, groups=c, layout=layout, stride=stride, padding=1)
    problem = dataclasses.replace(problem, prepared=True)
    target = zen(4)
    assert (DepthwiseWalk().estimate(problem, target) < Depthwise().estimate(problem, target)) == walks


@pytest.mark.parametrize(
    "n, c, size, layout, walks",
    [
        (1, 512, 14, "NHWC", True), (4, 512, 14, "NHWC", True), (1, 512, 14, "NCHW", False),
        (16, 256, 28, "NCHW", False), (16, 256, 28, "NHWC", False), (16, 1024, 7, "NHWC", False),
    ],
)  # fmt: skip
def test_layers_of_mobile_networks_on_a_zen_3(n, c, size, layout, walks):
    """What is asked for from the second level's size on is faster from afar there."""
    x = np.empty((n, c, size, size) if layout == "NCHW" else (n, size, size, c), np.float32)
    problem = problem_of("conv", x, np.empty((c, 1, 3, 3), np.float32), groups=c, layout=layout, padding=1)
    problem, target = dataclasses.replace(problem, prepared=True), zen(3)
    assert (DepthwiseWalk().estimate(problem, target) < Depthwise().estimate(problem, target)) == walks


def test_direct_takes_no_large_planes_past_the_caches_on_a_zen_4():
    """It took 12.5 ms there, the walk 2.2."""
    x, weight = np.empty((16, 64, 112, 112), np.float32), np.zeros((64, 1, 3, 3), np.float32)
    problem, target = problem_of("conv", x, weight, groups=64, stride=2, padding=1), zen(4)
    assert DepthwiseWalk().estimate(problem, target) < Direct().estimate(problem, target)
