"""Stacks: what is refused, what stays between their operations, and that they are the layers one by one."""

import itertools

import numpy as np
import pytest
from helpers import forced

import numbaprims
from numbaprims.stacks.operations import Pointwise, Step, Window, parse, steps_of

RELU, NORM = Pointwise("relu"), Pointwise("batch_norm", 3)
POOL = Window("max", (3, 3), (1, 1), (1, 1), (1, 1))


def parameters(rng, c: int, operations) -> np.ndarray | None:
    numbers = sum(each.numbers for each in operations)
    return (rng.random((c, numbers)) + 0.5).astype(np.float32) if numbers else None


def layers(x, operations, values, layout="NCHW"):
    """By the public functions, one after another."""
    at = 0
    for each in operations:
        if isinstance(each, Window):
            pool = getattr(numbaprims, f"{each.op}_pool")
            pads = tuple(zip(each.before, each.after, strict=True))
            words = {"stride": each.stride, "padding": pads, "dilation": each.dilation, "ceil_mode": each.ceil}
            if each.op == "avg":
                words["count_include_pad"] = each.count_include_pad
            x = pool(x, each.kernel, layout=layout, **words)
            continue
        own = [] if values is None else list(np.ascontiguousarray(values[:, at : at + each.numbers].T))
        at += each.numbers
        if each.kind == "batch_norm":
            mean, factor, shift = own
            # a variance of 1 leaves the factor as it is
            x = numbaprims.batch_norm(x, factor, shift, mean, np.ones_like(mean), eps=0.0, layout=layout)
        else:
            x = numbaprims.activation(x, each.kind)
    return x


@pytest.mark.parametrize("limit", [0, 2500, -1])
@pytest.mark.parametrize(
    "shape, layout, solver",
    [
        ((2, 5, 21, 33), "NCHW", "planes"), ((1, 3, 56, 56), "NCHW", "planes"), ((3, 2, 7, 7), "NCHW", "layers"),
        ((2, 21, 18, 5), "NHWC", "channels"),
    ],
)  # fmt: skip
def test_bits_are_those_of_the_layers(shape, layout, solver, limit):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    small = Window("max", (2, 3), (2, 1), (0, 1), (1, 0), ceil=True)
    operations = [RELU, POOL, NORM, RELU, POOL, NORM, Pointwise("sigmoid"), small, NORM, POOL, RELU]
    values = parameters(rng, shape[1] if layout == "NCHW" else shape[3], operations)
    with forced("stack", solver):
        y = numbaprims.stack(x, operations, values, layout=layout, limit=limit)
    np.testing.assert_array_equal(y, layers(x, operations, values, layout))


def test_bits_of_averages_over_planes():
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 3, 40, 56)).astype(np.float32)
    operations = [Window("avg", (3, 3), (2, 2), (1, 1), (1, 1), count_include_pad=False), NORM, RELU]
    values = parameters(rng, 3, operations)
    np.testing.assert_array_equal(numbaprims.stack(x, operations, values), layers(x, operations, values))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_nan_and_infinity_go_through(layout):
    x = np.random.default_rng(7).standard_normal((1, 3, 30, 50)).astype(np.float32)
    x[0, 0, 7, 9] = np.nan
    x[0, 1, 0, 0], x[0, 1, 9:17, 5:13], x[0, 2, 20, 30] = -np.inf, -np.inf, np.inf
    operations = [POOL, POOL, Pointwise("affine", 2), POOL]
    # the third channel's infinity becomes NaN between two maxima
    values = np.float32([[1, 0], [1, 0], [0, 1]])
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "NHWC" else x
    y = numbaprims.stack(given, operations, values, layout=layout)
    y = np.moveaxis(y, -1, 1) if layout == "NHWC" else y
    assert np.isnan(y[0, 0, 4:11, 6:13]).all() and np.isnan(y[0, 0]).sum() == 49
    assert y[0, 1, 12, 8] == -np.inf and np.isfinite(y[0, 1, :, 20:]).all()
    assert np.isnan(y[0, 2, 17:24, 27:34]).all() and np.isnan(y[0, 2]).sum() == 49


def test_arrays_are_added_where_they_are_named():
    rng = np.random.default_rng(8)
    x, first, second = (
        rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, 20), (2, 3, 9, 20), (2, 3, 4, 10))
    )
    pool = Window("max", (2, 2), (2, 2))
    add = Pointwise("add")
    y = numbaprims.stack(x, [add, RELU, pool, add, add, RELU], added=[first, second, second])
    want = numbaprims.relu(numbaprims.max_pool(numbaprims.relu(x + first), 2) + second + second)
    np.testing.assert_array_equal(y, want)


DEPTHWISE = {
    "3x3": Window("depthwise", (3, 3), (1, 1), (1, 1), (1, 1)),
    "3x3/2": Window("depthwise", (3, 3), (2, 2), (1, 1), (0, 0)),
    "2x3": Window("depthwise", (2, 3), (1, 2), (0, 0), (1, 1), (3, 1)),
    "7x7": Window("depthwise", (7, 7), (1, 1), (3, 3), (3, 3)),
    "5x4/2": Window("depthwise", (5, 4), (2, 2), (2, 2), (2, 1)),
    "9x8": Window("depthwise", (9, 8), (2, 1), (4, 4), (4, 3)),  # more weights than are written out
}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_anywhere_of_the_image(layout, dtype):
    """The first maximum takes the image to have none, and computes its rows once more where it had."""
    rng, size = np.random.default_rng(4), (13, 37)
    operations = [POOL, NORM, RELU]
    values = parameters(rng, 18, 2 * operations).astype(dtype)
    for at in itertools.product((0, 6, 12), (0, 15, 16, 31, 32, 36)):
        x = rng.standard_normal((1, 18, *size)).astype(dtype)
        x[(0, rng.integers(18), *at)] = np.nan
        x = x if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
        for blocks in (1, 2):
            y = x
            for k in range(blocks):
                y = layers(y, operations, values[:, 3 * k : 3 * k + 3], layout)
            found = numbaprims.stack(x, blocks * operations, values[:, : 3 * blocks].copy(), layout=layout)
            assert np.isnan(y).any()
            np.testing.assert_array_equal(found, y)


@pytest.mark.parametrize("layout, shape", [("NCHW", (2, 3, 19, 37)), ("NHWC", (1, 17, 20, 18))])
@pytest.mark.parametrize("window", DEPTHWISE)
def test_depthwise_windows_are_convolutions(window, layout, shape):
    """Alone, behind another stage and in front of one; few and many bands."""
    each, rng = DEPTHWISE[window], np.random.default_rng(12)
    c = shape[1] if layout == "NCHW" else shape[3]
    x, weight = rng.standard_normal(shape), rng.standard_normal((c, 1, *each.kernel))
    x, weight, shift = (a.astype(np.float32) for a in (x, weight, rng.standard_normal((c, 1))))
    pads = tuple(zip(each.before, each.after, strict=True))
    words = {"padding": pads, "stride": each.stride, "dilation": each.dilation, "groups": c, "layout": layout}
    weights = weight.reshape(c, -1)
    for before in (False, True)[: 1 + (each.numbers < 10)]:
        operations = [*[RELU, POOL] * before, Pointwise("bias", 1), each, RELU]
        given = numbaprims.max_pool(numbaprims.relu(x), 3, stride=1, padding=1, layout=layout) if before else x
        given = given + (shift.reshape(1, c, 1, 1) if layout == "NCHW" else shift[:, 0])
        want = numbaprims.relu(numbaprims.conv(given, weight, **words))
        for parameters in (np.concatenate([shift, weights], axis=1), np.concatenate([shift.T, weights.T]).T):
            y = numbaprims.stack(x, operations, parameters, layout=layout, limit=4000 * before)
            np.testing.assert_allclose(y, want, rtol=0, atol=1e-6 * np.abs(want).max())


def test_a_depthwise_window_takes_all_of_its_weights():
    x, each = np.zeros((1, 2, 6, 6), np.float32), DEPTHWISE["3x3"]
    with pytest.raises(ValueError, match=r"these operations take shape \(2, 9\)"):
        numbaprims.stack(x, [each], np.zeros((2, 8), np.float32))


def test_more_arrays_than_a_stage_adds():
    rng = np.random.default_rng(11)
    x, *added = (rng.standard_normal((1, 2, 6, 9)).astype(np.float32) for _ in range(5))
    want = numbaprims.max_pool(x, 3, stride=1, padding=1)
    for each in added:
        want = want + each
    np.testing.assert_array_equal(numbaprims.stack(x, [POOL] + [Pointwise("add")] * 4, added=added), want)
    want = x
    for each in added:
        want = want + each
    np.testing.assert_array_equal(numbaprims.stack(x, [Pointwise("add")] * 4, added=added), want)


def test_results_and_what_is_added_may_be_slices():
    rng = np.random.default_rng(9)
    x = rng.standard_normal((2, 4, 12, 17)).astype(np.float32)
    wide = np.full((2, 9, 12, 17), 7, np.float32)
    operations = [POOL, Pointwise("add"), RELU]
    numbaprims.stack(x[:, :3], operations, added=[wide[:, 6:]], out=wide[:, 2:5])
    np.testing.assert_array_equal(
        wide[:, 2:5], numbaprims.relu(numbaprims.max_pool(x[:, :3], 3, stride=1, padding=1) + 7)
    )
    assert (wide[:, :2] == 7).all() and (wide[:, 5:] == 7).all()


def test_columns_that_padding_makes_of_one_may_lie_apart(rng):
    x = rng.standard_normal((1, 16, 1, 1)).astype(np.float32)
    wide = np.full((2, 1, 16, 2, 4), 7, np.float32)
    added, out = wide[..., ::2]
    added[:] = rng.standard_normal(added.shape)
    numbaprims.stack(x, [Window("max", (2, 2), (1, 1), (1, 1), (1, 1)), Pointwise("add")], added=[added], out=out)
    np.testing.assert_array_equal(out, x + added)
    assert (wide[..., 1::2] == 7).all()


def test_elements_alone_may_be_computed_in_place():
    x = np.random.default_rng(10).standard_normal((3, 5, 6, 7)).astype(np.float32)
    want = numbaprims.relu(numbaprims.relu(x) * np.float32(2))
    y = numbaprims.stack(x, [RELU, Pointwise("scale", 1), RELU], np.full((5, 1), 2, np.float32), out=x)
    assert y is x
    np.testing.assert_array_equal(x, want)


X = np.zeros((1, 2, 4, 4), np.float32)


@pytest.mark.parametrize(
    "words, kind, text",
    [
        ({"x": X[0]}, ValueError, r"a stack takes images"),
        ({"x": X.astype(np.int32)}, TypeError, r"stack takes float64"),
        ({"operations": []}, ValueError, r"operations is empty"),
        ({"operations": [NORM]}, ValueError, r"parameters is None; these operations take 3"),
        ({"operations": [NORM], "parameters": np.zeros((2, 2), np.float32)}, ValueError, r"\(2, 3\)"),
        ({"operations": [NORM], "parameters": np.zeros((2, 3))}, TypeError, r"it must be float32"),
        ({"parameters": np.zeros((2, 3), np.float32)}, ValueError, r"these operations take none"),
        ({"operations": [Window("max", (5, 5), (1, 1))]}, ValueError, r"nothing is left"),
        ({"operations": [Window("max", (3, 3), (1, 1), (2, 2))]}, ValueError, r"at most by its half"),
        ({"operations": [Window("max", (0, 1), (1, 1))]}, ValueError, r"stride and dilation must be at least 1"),
        ({"operations": [Window("avg", (2, 2), (0, 1))]}, ValueError, r"stride and dilation must be at least 1"),
        ({"operations": [POOL._replace(dilation=(1, -1))]}, ValueError, r"stride and dilation must be at least 1"),
        ({"operations": [Window("avg", (1, 2), (1, 1), (0, 2), (0, 2), (1, 5))]}, ValueError, r"would have no element"),
        ({"operations": [Pointwise("relu", -1)]}, ValueError, r"relu takes numbers=0"),
        ({"operations": [Pointwise("batch_norm", 2)]}, ValueError, r"batch_norm takes numbers=3"),
        ({"operations": [Pointwise("glu")]}, ValueError, r"no such operation"),
        ({"operations": [Pointwise("add")]}, ValueError, r"0 arrays are given to be added; these operations add 1"),
        ({"operations": [Pointwise("add")], "added": [X[:, :1]]}, ValueError, r"added\[0\] is a .* it is added where"),
        ({"operations": [POOL], "out": X}, ValueError, r"out .*overlaps x|out shares"),
        ({"added": [X] * 5}, ValueError, r"at most 4"),
        ({"added": None}, TypeError, r"added is None; it must be a sequence of arrays"),
        ({"most": -1}, ValueError, r"most is -1; it must be at least 0"),
        ({"operations": [RELU] * 3000}, ValueError, r"operations has 3000 elements, too many for one kernel"),
    ],
)  # fmt: skip
def test_refusals(words, kind, text):
    words = {"x": X, "operations": [RELU], **words}
    with pytest.raises(kind, match=text):
        numbaprims.stack(words.pop("x"), words.pop("operations"), words.pop("parameters", None), **words)


def test_texts_stand_for_operations():
    steps = steps_of([RELU, POOL, NORM, RELU, POOL, Window("avg", (2, 2), (2, 2), ceil=True), RELU])
    assert [len(step.operations) for step in steps] == [4, 1, 2]
    assert tuple(Step.parse(step.text) for step in steps) == steps
    assert parse("prelu/1") == Pointwise("prelu", 1)


def test_no_images_and_no_channels():
    assert numbaprims.stack(np.zeros((0, 3, 8, 8), np.float32), [POOL]).shape == (0, 3, 8, 8)
    assert numbaprims.stack(np.zeros((2, 0, 8, 8), np.float32), [POOL]).shape == (2, 0, 8, 8)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("window", ["max/3x3/1x1/1x1/1x1/1x1/0/1", "avg/3x3/2x2/1x1/1x1/1x1/0/0"])
def test_padded_windows_of_what_is_walked_backwards(rng, window, layout):
    """Rows outside of the image are read backwards, too."""
    x = rng.standard_normal((2, 12, 10, 16)).astype(np.float32)
    for step in itertools.product((1, -1), repeat=3):
        view = x[:, :: step[0], :: 2 * step[1], :: step[2]]
        zeros = np.zeros((view.shape[1 if layout == "NCHW" else 3], 1), np.float32)
        found, want = (numbaprims.stack(each, [window, "bias/1"], zeros, layout=layout) for each in (view, view.copy()))
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)
