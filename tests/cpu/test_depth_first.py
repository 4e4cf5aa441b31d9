"""How the CPU cuts stacks: bands, buffers, sequences; nothing is computed twice, and no limit is exceeded."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.stack import planner
from numbaprims.cpu.stack.solvers import SOLVERS
from numbaprims.cpu.stack.stages import run_bands, stages_of
from numbaprims.ops._stack_problem import StackProblem
from numbaprims.stacks.operations import Pointwise, Step, Window, sizes_of, steps_of

RELU, NORM = Pointwise("relu"), Pointwise("batch_norm", 3)
POOL = Window("max", (3, 3), (1, 1), (1, 1), (1, 1))


def problem(shape, operations, **words) -> StackProblem:
    n, c, h, w = shape
    strides = ((c * h * w, h * w, w, 1), (c * h * w, h * w, w, 1), (3, 1))
    texts = tuple(step.text for step in steps_of(operations))
    return StackProblem("f32", n, c, (h, w), texts, "channels_first", strides=strides, **words)


@st.composite
def windows(draw):
    op = draw(st.sampled_from(["max", "avg", "max", "avg", "depthwise"]))
    most = 3 if op == "depthwise" else 5  # a kernel of 25 weights compiles for seconds
    kernel = draw(st.integers(1, most)), draw(st.integers(1, most))
    dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    half = [((k - 1) * d + 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    pads = [(draw(st.integers(0, h)), draw(st.integers(0, h))) for h in half]
    stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    before, after = zip(*pads, strict=True)
    if op == "depthwise":
        return Window(op, kernel, stride, before, after, dilation)
    return Window(op, kernel, stride, before, after, dilation, draw(st.booleans()), draw(st.booleans()))


@st.composite
def stacks(draw, most=12):
    """(size, operations) that leave something of an image."""
    size = start = draw(st.integers(1, 40)), draw(st.integers(1, 70))
    found = []
    for _ in range(draw(st.integers(1, most))):
        each = draw(st.one_of(windows(), st.sampled_from([RELU, NORM, Pointwise("leaky_relu", 1), POOL, POOL])))
        if isinstance(each, Window):
            out = each.out_size(size)
            lasts = [(o - 1) * s - b for o, s, b in zip(out, each.stride, each.before, strict=True)]
            if min(out) < 1 or any(last >= length for last, length in zip(lasts, size, strict=True)):
                continue
            size = out
        found.append(each)
    return start, found or [RELU]


@given(stacks(), st.sampled_from(["NCHW", "NHWC"]), st.sampled_from([0, 1000, 3000, 20000, -1]), st.integers(0, 3))
def test_drawn_stacks_are_their_definition(drawn, layout, limit, most):
    (h, w), operations = drawn
    rng = np.random.default_rng(h * w)
    x = rng.standard_normal((2, 3, h, w)).astype(np.float32)
    if layout == "NHWC":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    numbers = sum(each.numbers for each in operations)
    values = rng.random((3, numbers)).astype(np.float32) + np.float32(0.5) if numbers else None
    y = numbaprims.stack(x, operations, values, layout=layout, limit=limit, most=most)
    with numbaprims.config(device="reference"):
        want = numbaprims.stack(x, operations, values, layout=layout)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(finite, np.isfinite(y))
    scale = np.abs(want[finite]).max(initial=1e-3)
    np.testing.assert_allclose(y[finite], want[finite], rtol=0, atol=4e-7 * scale * (len(operations) + 4))


@given(stacks(40), st.integers(1, 64), st.integers(0, 40))
def test_bands_compute_each_row_once(drawn, rows, first):
    size, operations = drawn
    stages = stages_of(steps_of(operations))
    heights = tuple(h for h, _ in _sizes(stages, size))
    lo = min(first, heights[-1] - 1)
    whole = run_bands(stages, heights, 0, heights[-1], rows)
    # all rows that later stages read, and no more
    needed, wanted = heights[-1], []
    for stage, height in zip(reversed(stages), reversed(heights[:-1]), strict=True):
        wanted.append(needed)
        needed = stage.rows_read(0, needed, height)[1]
    assert list(whole.computed) == wanted[::-1]
    part = run_bands(stages, heights, lo, heights[-1], rows)
    assert all(a <= b for a, b in zip(part.computed, whole.computed, strict=True))
    # what is kept from band to band are rows that a window spans, and one that waits for the next band
    for stage, past in zip(stages[1:], whole.past[1:], strict=True):
        assert past <= stage.extent + stage.stride + 1


def _sizes(stages, size):
    sizes = [size]
    for stage in stages:
        sizes.append(stage.out_size(sizes[-1]))
    return sizes


@given(stacks(40), st.integers(10, 20))
def test_no_sequence_takes_more_than_the_limit(drawn, exponent):
    size, operations = drawn
    limit = 1 << exponent
    p = problem((1, 2, *size), operations, limit=limit)
    cut = list(planner.sequences(p, target.current()))
    assert sum(len(each.stages) for each in cut) == len(stages_of(steps_of(operations)))
    for each in cut:
        # what the program asks for, but for the words that are no image
        assert each.bytes() <= limit
        assert len(each.stages) == 1 or Regions(own=each.layout().own).own_bytes == each.bytes()


@pytest.mark.parametrize("most", [1, 2, 5])
def test_sequences_have_so_many_steps(most):
    p = problem((1, 2, 30, 30), [POOL, NORM, RELU] * 12, most=most)
    cut = list(planner.sequences(p, target.current()))
    assert [len(each.stages) for each in cut] == [most] * (12 // most) + [12 % most] * (12 % most > 0)


def test_equal_blocks_share_their_kernels():
    program = SOLVERS[1].program(problem((1, 2, 56, 56), [POOL, NORM, RELU] * 40), target.current(), {})
    (run,) = program.runs
    assert [phase.kernel.name for phase in run.phases] == ["depth_first"]
    blocks = program.keep[-1]
    from numbaprims.cpu.stack.arguments import STAGE

    kernels = blocks[:, STAGE.slot("kernel")]
    assert len(kernels) == 40 and len(set(kernels[1:-1])) == 1 and len(set(kernels)) == 3


def test_few_blocks_of_channels_are_cut_over_rows():
    """Workers that have neighbouring blocks would write the same lines."""
    two = dataclasses.replace(target.current(), cores_logical=2)
    p = problem((1, 48, 112, 112), [POOL, NORM, RELU] * 2)
    assert [each.tiles % 2 for each in planner.sequences(p, two, channels=16)] == [0]
    many = problem((16, 48, 112, 112), [POOL, NORM, RELU] * 2)
    assert [each.tiles for each in planner.sequences(many, two, channels=16)] == [1]


def test_few_planes_are_cut_for_all_workers():
    one, many = (dataclasses.replace(target.current(), cores_logical=cores) for cores in (1, 8))
    p = problem((1, 1, 300, 300), [POOL, NORM, RELU] * 4)
    assert [each.tiles for each in planner.sequences(p, one)] == [1]
    (cut,) = planner.sequences(p, many)
    assert cut.tiles >= 8
    x = np.random.default_rng(0).standard_normal((1, 1, 300, 300)).astype(np.float32)
    operations, values = [POOL, NORM, RELU] * 4, np.ones((1, 12), np.float32)
    for rows in (7, 40, 300):
        tiled = [each._replace(tile=rows) for each in planner.sequences(p, one)]
        assert sum(sum(band.computed) for band in tiled[0].bands()) >= 4 * 300
    want = numbaprims.stack(x, operations, values)
    p = dataclasses.replace(p, strides=(*p.strides[:2], (12, 1)))
    y = np.empty_like(x)
    SOLVERS[1].bind(p, many, {})(y, x, values)
    np.testing.assert_array_equal(y, want)


def test_bits_do_not_depend_on_bands_or_lanes():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 45, 61)).astype(np.float32)
    operations = [RELU, POOL, NORM, Window("avg", (3, 2), (2, 2), (1, 0), (1, 1)), RELU, POOL]
    values = rng.random((3, 3)).astype(np.float32)
    want = numbaprims.stack(x, operations, values)
    for limit in (1500, 5000, 20000, 100000, -1):
        np.testing.assert_array_equal(numbaprims.stack(x, operations, values, limit=limit), want)
    assert Step.parse("relu/0").window is None and len(sizes_of(steps_of(operations), (45, 61))) == 4


def test_small_planes_and_strides_go_by_layers():
    """A part of a plane of two vectors at a time took 1.5 times as long."""
    cpu = dataclasses.replace(target.current(), name="znver5", vector_bytes=64, l2=1 << 20, l3=1 << 25, measured=None)
    names = []
    for shape in ((16, 64, 7, 7), (16, 64, 56, 56)):
        found = problem(shape, 4 * [POOL, NORM, RELU])
        names.append(min(able(found, cpu), key=lambda one: one.estimate(found, cpu)).name)
        apart = dataclasses.replace(found, layout="strided", strides=((1, 2, 3, 4), (1, 2, 3, 4), (3, 1)))
        assert [each.name for each in able(apart, cpu)] == ["layers", "naive"]
    assert names == ["layers", "planes"]


def able(found: StackProblem, cpu) -> list:
    return [each for each in SOLVERS if each.why_not(found, cpu) is None]
