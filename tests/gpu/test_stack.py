"""Stacks on a GPU: sequences and single steps against the definition, in the emulator; what the planner promises."""

import dataclasses
import itertools

import numpy as np
import pytest
from gpu.mutants import hunt
from helpers import assert_near, from_float64, in_domain, to_float64

import numbaprims
from numbaprims.device_views import DeviceView
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.activation.formulas import FORWARD
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.stack import SOLVERS, planning, solvers
from numbaprims.gpu.target import H200
from numbaprims.ops.stack import StackProblem, added_sizes
from numbaprims.reference import stack as reference
from numbaprims.stacks.operations import Pointwise, Window, steps_of

SOLVER = {solver.name: solver for solver in SOLVERS}
NORM, RELU, SCALE, BIAS = Pointwise("batch_norm", 3), Pointwise("relu"), Pointwise("scale", 1), Pointwise("bias", 1)
ADD, AFFINE, GELU = Pointwise("add"), Pointwise("affine", 2), Pointwise("gelu")


def window(op, kernel, stride=1, before=0, after=None, dilation=1, **further):
    pairs = (kernel, stride, before, before if after is None else after, dilation)
    return Window(op, *((each, each) if isinstance(each, int) else each for each in pairs), **further)


BLOCK = (window("max", 3, 1, 1), NORM, RELU)
CEIL = window("avg", 3, 2, 1, ceil=True, count_include_pad=False)


class Array:
    """Elements in memory of the emulated GPU, over (n, c, height, width), in some layout."""

    def __init__(self, storage, layout):
        order = (0, 2, 3, 1) if layout == "channels_last" else (0, 1, 2, 3)
        whole = np.ascontiguousarray(storage.transpose(order))
        if layout == "strided":
            whole = np.repeat(whole, 2, 3)
        self.memory = to_device(whole)
        host = whole[..., ::2] if layout == "strided" else whole.transpose(np.argsort(order))
        self.strides = host.strides
        self.view = DeviceView(
            self.memory.pointer, host.shape, host.strides, host.dtype, self.memory.numbaprims_library
        )
        self.elements = tuple(s // host.itemsize for s in host.strides)
        self.order, self.layout = order, layout

    def to_host(self):
        whole = self.memory.to_host()
        return whole[..., ::2] if self.layout == "strided" else whole.transpose(np.argsort(self.order))


def draw(rng, operations, dtype, shape, layout="channels_first", special=False, **limits):
    """(problem, arrays of a launch, what it must give)."""
    n, c, h, w = shape
    values = rng.standard_normal(shape)
    if special:
        values = np.where(rng.random(shape) < 0.1, np.nan, np.where(rng.random(shape) < 0.3, -np.inf, values))
    x = from_float64(values, dtype)
    numbers = sum(each.numbers for each in operations)
    accumulate = DTYPES[dtype].accumulate
    parameters = from_float64(rng.uniform(0.3, 1.5, (c, numbers)), accumulate) if numbers else None
    added = [from_float64(rng.standard_normal((n, c, *size)), dtype) for size in added_sizes(operations, (h, w))]
    wide = [to_float64(each, dtype) for each in (x, *added)]
    want = reference.stack(operations, wide[0], parameters, wide[1:])
    steps = tuple(step.text for step in steps_of(operations))
    out = Array(from_float64(np.full(want.shape, 77.0), dtype), layout)
    arrays = [out, *(Array(each, layout) for each in (x, *added))]
    strides = [each.elements for each in arrays]
    views = [each.view for each in arrays]
    if numbers:
        memory = to_device(parameters)
        views.insert(2, DeviceView(
            memory.pointer, parameters.shape, parameters.strides, parameters.dtype, memory.numbaprims_library
        ))  # fmt: skip
        out.parameters = memory
    else:
        views.insert(2, None)
    strides.insert(2, (numbers, 1))
    problem = StackProblem(dtype, n, c, (h, w), steps, layout, strides=tuple(strides), **limits)
    out.others = arrays
    return problem, views, out, want


def check(solver, operations, dtype, shape, config=None, **further):
    """One case by one solver."""
    problem, views, out, want = draw(np.random.default_rng(5), operations, dtype, shape, **further)
    one = SOLVER[solver]
    assert one.why_not(problem, H200) is None
    one.bind(problem, H200, config or next(iter(one.configs(problem, H200))))(*views)
    assert_near(out.to_host(), want, dtype, problem.roundings(), np.abs(want[np.isfinite(want)]).max(initial=0))
    return problem


CASES = {
    "elements": ((NORM, RELU, Pointwise("leaky_relu", 1), SCALE, BIAS, AFFINE), "f32", (3, 4, 5, 9), {}),
    "pool": ((window("max", 2, 2),), "f32", (2, 3, 9, 7), {}),
    "before": ((RELU, SCALE, window("avg", 3, 2, 1), BIAS), "f32", (2, 3, 8, 9), {}),
    "blocks": (BLOCK * 5, "f32", (2, 3, 19, 23), {"special": True}),
    "blocks, rows of 4": (BLOCK * 5, "f32", (1, 2, 31, 9), {"limit": 1024}),
    "channels last": (BLOCK * 3, "f16", (2, 5, 11, 13), {"layout": "channels_last"}),
    "strided": ((NORM, *BLOCK, *BLOCK), "bf16", (2, 3, 9, 12), {"layout": "strided"}),
    "f64": ((SCALE, window("avg", (3, 2), (1, 2), (1, 0)), Pointwise("tanh"), CEIL), "f64", (1, 3, 13, 12), {}),
    "ceil": ((CEIL, RELU, window("max", 2, 2, ceil=True), window("avg", 3, 2, 1)), "f32", (2, 2, 23, 17), {}),
    "added": ((ADD, NORM, window("max", 3, 1, 1), ADD, window("max", 3, 2, 1), ADD), "f16", (2, 3, 9, 10), {}),
    "dilated": ((window("avg", 2, 1, 1, dilation=2), window("max", (2, 3), (2, 1), 1, dilation=(3, 1))), "f32",
                (1, 2, 15, 14), {}),
    "large": ((window("avg", 7, 1, 3), GELU, window("max", (6, 5), 3)), "bf16", (1, 3, 21, 20), {}),
    "large alone": ((RELU, window("max", 7, 2, 3), NORM), "f32", (1, 2, 17, 15), {"special": True}),
    "large mean alone": ((window("avg", 6, 2, 2, count_include_pad=False),), "f32", (1, 2, 17, 15), {}),
    "a step each": (BLOCK * 3, "bf16", (1, 2, 9, 9), {"most": 1}),
    "two steps each": (BLOCK * 5, "f16", (1, 2, 9, 9), {"most": 2}),
    "depthwise": ((RELU, window("depthwise", 3, 1, 1), BIAS, RELU, window("depthwise", 3, 2, 1), NORM), "f32",
                  (2, 3, 14, 17), {}),
    "depthwise last": ((window("depthwise", 3, 1, 2, dilation=2), GELU, window("max", 2, 2)), "f16", (2, 5, 11, 13),
                       {"layout": "channels_last"}),
    "depthwise large": ((SCALE, window("depthwise", (7, 5), 1, (3, 2)), BIAS, ADD), "bf16", (1, 3, 12, 15),
                        {"layout": "strided"}),
    "one place": (BLOCK * 2, "f32", (2, 3, 1, 1), {}),
    "a column": (BLOCK * 2, "f32", (2, 1, 37, 1), {}),
    "uneven padding": ((window("max", 3, 2, 0, 1), window("avg", 3, 2, (1, 0), (0, 1)), NORM), "f32",
                       (1, 3, 16, 18), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("solver", ["depth_first", "naive"])
def test_results(gpu, solver, case):
    operations, dtype, shape, further = CASES[case]
    check(solver, operations, dtype, shape, **further)


@pytest.mark.parametrize(
    ("dtype", "shape", "layout", "width"),
    [
        ("f32", (3, 5, 4, 7), "channels_first", 4), ("bf16", (2, 3, 7, 7), "channels_first", 1),
        ("f16", (2, 3, 40, 64), "channels_first", 8), ("f32", (2, 3, 5, 5), "channels_last", 1),
        ("f16", (2, 16, 9, 7), "channels_last", 4), ("f64", (1, 6, 5, 5), "channels_last", 2),
        ("f32", (300, 2, 1, 1), "channels_first", 1), ("f32", (1, 1, 70, 128), "channels_first", 4),
    ],
)  # fmt: skip
def test_elements(gpu, dtype, shape, layout, width):
    """Packs of a plane or of channels, and as many elements as lie side by side and aligned."""
    operations = (ADD, NORM, Pointwise("leaky_relu", 1), ADD, SCALE, Pointwise("mish"), BIAS)
    problem = check("pointwise", operations, dtype, shape, layout=layout)
    assert SOLVER["pointwise"].width(problem) == width
    assert f"{dtype}_{width}_{layout == 'channels_last'}" in gpu.launches[-1].entry
    assert SOLVER["pointwise"].estimate(problem, H200) <= SOLVER["depth_first"].estimate(problem, H200)


def test_elements_between_multiples_of_16_bytes(gpu):
    problem, views, out, want = draw(np.random.default_rng(6), (NORM, RELU), "f32", (2, 3, 4, 4))
    room = to_device(np.zeros(want.size + 1, np.float32))
    library = room.numbaprims_library
    views[0] = DeviceView(room.pointer + 4, want.shape, views[0].strides, views[0].dtype, library)
    SOLVER["pointwise"].bind(problem, H200, {})(*views)
    np.testing.assert_allclose(room.to_host()[1:].reshape(want.shape), want, rtol=1e-5, atol=1e-6)
    assert "f32_1_" in gpu.launches[-1].entry


def test_what_is_not_elements():
    for operations, further, words in (
        ((window("max", 2, 2),), {}, "element-wise"),
        ((NORM,), {"layout": "strided"}, "contiguous"),
        ((NORM,) * 11, {"layout": "channels_last"}, "33 parameters"),
    ):
        steps = tuple(step.text for step in steps_of(operations))
        lying = {"layout": "channels_first"} | further
        problem = StackProblem("f32", 1, 2, (4, 4), steps, strides=((32, 16, 4, 1),) * 3, **lying)
        assert words in SOLVER["pointwise"].why_not(problem, H200)


@pytest.mark.parametrize("kind", sorted(FORWARD))
def test_every_activation(gpu, kind):
    numbers = FORWARD[kind][1]
    parameters = np.float32([[0.5, 1.25, 2.0][:numbers]] * 2).reshape(2, numbers)
    x = np.linspace(-4, 4, 60).reshape(1, 2, 5, 6)
    x = in_domain(x, kind)
    operations = (Pointwise(kind, numbers), window("max", 2, 1))
    problem, views, out, _ = draw(np.random.default_rng(1), operations, "f32", x.shape)
    given = Array(from_float64(x, "f32"), "channels_first")
    views[1] = given.view
    if numbers:
        out.parameters = to_device(parameters)
        library = out.parameters.numbaprims_library
        views[2] = DeviceView(out.parameters.pointer, parameters.shape, parameters.strides, parameters.dtype, library)
    SOLVER["depth_first"].bind(problem, H200, {"shared": 16, "threads": 128})(*views)
    want = reference.stack(operations, to_float64(from_float64(x, "f32"), "f32"), parameters)
    np.testing.assert_allclose(out.to_host(), want, rtol=1e-5, atol=1e-6)


def test_bits_do_not_depend_on_the_plan(gpu):
    """Whatever the sequences, patches and threads, and by pooling's own kernels."""
    operations = (
        Pointwise("hard_swish"),
        BIAS,
        window("avg", 3, 1, 1),
        SCALE,
        BIAS,
        CEIL,
        NORM,
        window("avg", 3, 1, 1),
    )
    results = []
    for most, shared, threads in ((0, 16, 128), (0, 48, 256), (0, 1, 128), (2, 16, 128), (1, 16, 128)):
        problem, views, out, _ = draw(np.random.default_rng(2), operations, "f32", (1, 3, 21, 17), most=most)
        SOLVER["depth_first"].bind(problem, H200, {"shared": shared, "threads": threads})(*views)
        results.append(out.to_host().copy())
    for each in results[1:]:
        np.testing.assert_array_equal(each.view(np.uint32), results[0].view(np.uint32))


@pytest.mark.parametrize("op", ["max", "avg"])
def test_bits_of_pooling(gpu, op):
    x = to_device(np.random.default_rng(3).standard_normal((2, 3, 11, 13)).astype(np.float32))
    stacked = numbaprims.stack(x, [window(op, 3, 1, 1), window(op, 3, 2, 1)])
    layers, config = x, numbaprims.config(algorithm={"pooling": "windows"})
    for stride in (1, 2):
        words = {"count_include_pad": True} if op == "avg" else {}
        with config:
            layers = getattr(numbaprims, f"{op}_pool")(layers, 3, stride=stride, padding=1, **words)
    np.testing.assert_array_equal(stacked.to_host().view(np.uint32), layers.to_host().view(np.uint32))


def test_the_public_call(gpu):
    """Channels last, what is added, and `out`."""
    rng = np.random.default_rng(8)
    x, more = (rng.standard_normal((2, 9, 8, 5)).astype(np.float32) for _ in range(2))
    parameters = rng.standard_normal((5, 3)).astype(np.float32)
    given = ([window("max", 3, 1, 1), ADD, NORM, window("avg", 2, 2)], parameters)
    with numbaprims.config(device="reference"):
        want = numbaprims.stack(x, *given, added=[more], layout="NHWC")
    out = to_device(np.zeros_like(want))
    operations, numbers = given[0], to_device(parameters)
    numbaprims.stack(to_device(x), operations, numbers, added=[to_device(more)], layout="NHWC", limit=2048, out=out)
    np.testing.assert_allclose(out.to_host(), want, rtol=1e-5, atol=1e-6)
    assert gpu.launches[-1].shared <= 2048


def test_equal_steps_share_code(gpu):
    """40 blocks compile what 5 do, and those of one sequence are one launch."""
    shape = (1, 1, 6, 7)
    entries = []
    for depth in (5, 40):
        check("depth_first", BLOCK * depth, "f32", shape, config={"shared": 48, "threads": 128})
        entries.append({launched.entry for launched in gpu.launches})
    assert entries[0] == entries[1] and len(entries[0]) == 1
    assert len(gpu.launches) == 2


def test_more_planes_than_a_launch_takes(gpu, monkeypatch):
    monkeypatch.setattr(solvers, "BLOCKS", 4)
    problem = check("depth_first", (*BLOCK, *BLOCK), "f32", (3, 3, 8, 8), config={"shared": 16, "threads": 128})
    assert len(gpu.launches) > 2
    assert problem.n * problem.c > 4


def draw_steps(rng, deepest=40):
    """Operations whose windows leave something, and the size that they begin with."""
    operations, size = [], tuple(map(int, rng.integers(1, 40, 2)))
    first, added = size, 0
    for _ in range(rng.integers(1, deepest + 1)):
        if rng.random() < 0.4:
            kind = [NORM, RELU, SCALE, BIAS, Pointwise("hard_swish"), ADD][rng.integers(6 if added < 4 else 5)]
            added += kind is ADD
            operations.append(kind)
            continue
        kernel, stride, dilation = (tuple(map(int, rng.integers(1, most, 2))) for most in (5, 3, 3))
        before, after = (tuple(int(rng.integers(0, (k + 1) // 2)) for k in kernel) for _ in range(2))
        op = str(rng.choice(["avg", "max", "depthwise"]))
        each = window(op, kernel, stride, before, after, dilation)
        if op != "depthwise":
            each = each._replace(ceil=bool(rng.integers(2)), count_include_pad=bool(rng.integers(2)))
        if all(s >= extent for s, extent in zip(size, each.extents, strict=True)):
            operations.append(each)
            size = each.out_size(size)
    return operations or [RELU], first


def check_drawn(seed):
    """A stack in any cache is what its steps one by one are, bit for bit, and what the definition says."""
    rng = np.random.default_rng(seed)
    operations, size = draw_steps(rng, 12)
    dtype, layout = (
        rng.choice(["f32", "f32", "bf16", "f64"]),
        rng.choice(["channels_first", "channels_last", "strided"]),
    )
    limits = {"limit": int(2 ** rng.uniform(10, 20)), "most": int(rng.integers(0, 4))}
    shape = (int(rng.integers(1, 3)), int(rng.integers(1, 6)), *size)
    results = []
    for solver in ("depth_first", "naive"):
        problem, views, out, want = draw(
            np.random.default_rng(seed), operations, dtype, shape, layout, bool(seed % 2), **limits
        )
        assert SOLVER[solver].why_not(problem, H200) is None
        SOLVER[solver].bind(problem, H200, next(iter(SOLVER[solver].configs(problem, H200))))(*views)
        results.append(out.to_host().copy())
    np.testing.assert_array_equal(*(np.ascontiguousarray(each).view(np.uint8) for each in results))
    finite = np.abs(want[np.isfinite(want)]).max(initial=0)
    assert_near(results[0], want, dtype, problem.roundings(), finite)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_stacks(gpu, seed):
    check_drawn(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 80))
def test_more_drawn_stacks(gpu, seed):
    check_drawn(seed)


def read_by(window, d, span, patch):
    """(what a patch holds of a window's results, what the windows of those that are none of the padding read)."""
    start = patch * span.step - span.before
    lo, hi = max(start, span.lowest, 0), min(start + span.length, span.top, span.size)
    return lo * window.stride[d] - window.before[d], (hi - 1) * window.stride[d] - window.before[d] + window.extents[d]


@pytest.mark.parametrize("seed", range(60))
def test_plans(seed):
    """Every step once and in order, no more shared memory than the limit, and regions that hold what windows read."""
    rng = np.random.default_rng(seed)
    operations, size = draw_steps(rng)
    steps = steps_of(operations)
    texts, limit, most = tuple(step.text for step in steps), int(2 ** rng.uniform(10, 20)), int(rng.integers(0, 4))
    group = int(2 ** rng.integers(0, 5))
    room = planning.Room(int(rng.integers(1, 300)), group, 4, 4, limit, most, 128)
    seconds, sequences = planning.sequences(texts, size, room, H200)
    parts = [planning.parts_of(step) for step in steps]
    assert [0, *(each.end for each in sequences)] == [*(each.begin for each in sequences), len(steps)]
    assert seconds > 0
    for each in sequences:
        count = each.end - each.begin
        assert not most or count <= most
        assert len(each.regions) == (1 if count == 1 else count + 1) <= planning.MOST_PASSES
        held = [group * planning.places(region) for region in each.regions]
        if count == 1:
            assert each.nbytes == 0
            continue
        assert each.nbytes == 4 * (max(held[:-1][::-2]) + max(held[:-1][-2::-2], default=0)) <= limit
        for at, d, patch in itertools.product(range(count), (0, 1), range(max(each.patches))):
            if patch < each.patches[d]:
                given, made = each.regions[at][d], each.regions[at + 1][d]
                lo, hi = read_by(parts[each.begin + at].window, d, made, patch)
                start = patch * given.step - given.before
                assert max(start, given.lowest) <= lo < hi <= min(start + given.length, given.top)
                assert min(start + given.length, given.top) - max(start, given.lowest) <= given.held


def test_a_model_that_sees_the_halo():
    """Time a block does not rise with depth, and the choice is never slower than a step each."""
    each = []
    for depth in (1, 2, 5, 10, 20, 40):
        texts = tuple(step.text for step in steps_of(BLOCK * depth))
        room = planning.Room(256, 1, 4, 4, 16 << 10, 0, 128)
        seconds = planning.sequences(texts, (56, 56), room, H200)[0]
        assert seconds <= planning.sequences(texts, (56, 56), room._replace(most=1), H200)[0]
        each.append(seconds / depth)
    assert max(each) == each[0] and each[-1] <= 1.05 * min(each)


def test_configs(gpu):
    """The shared memory that keeps a plane whole, and the least where it does not matter."""
    deep = dataclasses.replace(draw(np.random.default_rng(0), BLOCK, "f32", (1, 1, 4, 4))[0], n=4, c=64, size=(56, 56))
    first = next(iter(SOLVER["depth_first"].configs(deep, H200)))
    assert first == {"shared": 16, "threads": 128}
    deep = dataclasses.replace(deep, steps=deep.steps * 20)
    assert next(iter(SOLVER["depth_first"].configs(deep, H200))) == {"shared": 32, "threads": 128}
    assert SOLVER["depth_first"].estimate(deep, H200) < SOLVER["naive"].estimate(deep, H200)
    for n, threads in ((4, 128), (512, 32)):
        small = dataclasses.replace(deep, size=(7, 7), n=n)
        assert next(iter(SOLVER["depth_first"].configs(small, H200))) == {"shared": 16, "threads": threads}
    assert SOLVER["depth_first"].is_valid(deep, H200, {"shared": 48, "threads": 256})


def test_mutants():
    """Mistakes planted in the kernel of a sequence."""
    operations = (window("max", 3, 1, 1), NORM, window("avg", 3, 2, 1), ADD)

    def call():
        problem, views, out, want = draw(np.random.default_rng(4), operations, "f32", (2, 2, 13, 11))
        SOLVER["depth_first"].bind(problem, H200, {"shared": 2, "threads": 128})(*views)
        return out.to_host(), want

    def same(results):
        np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)

    caught, missed = hunt(call, same, most=6)
    assert len(caught) >= 12
    assert not [str(mutant) for mutant in missed if mutant.kind != "bound off by one"]
