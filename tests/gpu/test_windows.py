"""Pooling on a GPU: every operation, direction, type and layout against the definition, in the emulator."""

import dataclasses
import itertools

import numpy as np
import pytest
from gpu.mutants import hunt
from helpers import assert_near, from_float64, to_float64

from numbaprims.device_views import DeviceView
from numbaprims.dtypes import DTYPES, FLOATS
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import H200
from numbaprims.gpu.windows import SOLVERS
from numbaprims.gpu.windows.solvers import Layout
from numbaprims.ops._pooling_problem import ARRAYS, PoolingProblem
from numbaprims.reference import pooling as reference

SOLVER = {solver.name: solver for solver in SOLVERS}


def lay(storage, layout):
    """The same elements in another order in memory: channels last, or with gaps between all."""
    if layout == "channels_last":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(storage, 1, -1)), -1, 1)
    if layout == "strided":
        return np.repeat(np.ascontiguousarray(storage.swapaxes(0, -1)), 2, 0)[::2].swapaxes(0, -1)
    return np.ascontiguousarray(storage)


def solve(solver, problem, **arrays):
    """Run a solver on the emulated GPU; the arrays, among them those written, are those of the host afterwards."""
    views, given = [], {}
    for name in ARRAYS:
        storage = arrays.get(name)
        if storage is None:
            views.append(None)
            continue
        whole = storage if storage.base is None else storage.base
        while whole.base is not None:
            whole = whole.base
        memory = to_device(np.ascontiguousarray(whole))
        offset = storage.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        library = memory.numbaprims_library
        view = DeviceView(memory.pointer + offset, storage.shape, storage.strides, storage.dtype, library)
        views.append(view)
        given[name] = (memory, storage, whole)
    assert SOLVER[solver].why_not(problem, H200) is None
    SOLVER[solver].bind(problem, H200, {})(*views)
    for memory, storage, whole in given.values():
        whole[...] = memory.to_host()
        assert storage.base is not None or storage is whole


def pose(op, direction, dtype, shape, layout, indices="", adaptive=None, **window):
    """A problem without its strides; `window` has kernel, stride, before, after, dilation, with defaults."""
    n, c, *size = shape
    rank = len(size)
    every = {"kernel": 2, "stride": 2, "before": 0, "after": 0, "dilation": 1}
    facts = {
        name: (value,) * rank if isinstance(value := window.pop(name, default), int) else tuple(value)
        for name, default in every.items()
    }
    ceil = window.pop("ceil_mode", False)
    if adaptive:
        out, facts = tuple(adaptive), {name: (0,) * rank for name in every}
    else:
        out = []
        for d in range(rank):
            free = (
                size[d] + facts["before"][d] + facts["after"][d] - facts["dilation"][d] * (facts["kernel"][d] - 1) - 1
            )
            o = (-(-free // facts["stride"][d]) if ceil else free // facts["stride"][d]) + 1
            if ceil and (o - 1) * facts["stride"][d] >= size[d] + facts["before"][d]:
                o -= 1
            out.append(o)
    return PoolingProblem(
        op, direction, dtype, n, c, tuple(size), tuple(out), layout=layout, adaptive=bool(adaptive), indices=indices,
        **facts, **window,
    )  # fmt: skip


def with_strides(problem, arrays):
    strides = tuple(
        None if (a := arrays.get(name)) is None else tuple(s // a.itemsize for s in a.strides) for name in ARRAYS
    )
    return dataclasses.replace(problem, strides=strides)


def poisoned(shape, dtype, layout):
    storage = DTYPES[dtype].storage
    poison = from_float64(np.nan, dtype) if dtype in FLOATS else storage.type(int("55" * storage.itemsize, 16))
    return lay(np.full(shape, poison, storage), layout)


def check(solver, op, dtype, shape, layout="channels_first", special=False, rng=None, **window):
    """Forward, forward with places, and gradients of one case."""
    rng = rng or np.random.default_rng(7)
    problem = pose(op, "forward", dtype, shape, layout, **window)
    if dtype in FLOATS:
        values = rng.integers(-6, 7, shape) / 4 if op == "max" else rng.standard_normal(shape)
        if special:
            values = np.where(rng.random(shape) < 0.1, np.nan, np.where(rng.random(shape) < 0.4, -np.inf, values))
        storage = from_float64(values, dtype)
    else:
        storage = rng.integers(-128 if dtype == "i8" else 0, 128 if dtype == "i8" else 256, shape).astype(
            dtype.replace("i", "int").replace("u", "uint")
        )
    wide = to_float64(storage, dtype) if dtype in FLOATS else storage.astype(np.float64)
    x = lay(storage, layout)
    want, places = reference.forward(problem, wide)
    for kept in ("", "i64") if op == "max" and solver != "whole" else ("",):
        arrays = {"x": x, "out": poisoned(want.shape, dtype, layout)}
        if kept:
            arrays["indices"] = poisoned(want.shape, "i64", layout)
        own = with_strides(pose(op, "forward", dtype, shape, layout, indices=kept, **window), arrays)
        solve(solver, own, **arrays)
        if dtype in FLOATS:
            assert_near(
                arrays["out"],
                want,
                dtype,
                0 if op == "max" else problem.roundings(),
                np.abs(want).max(initial=0) if op == "avg" else 0,
            )
        else:
            np.testing.assert_array_equal(arrays["out"], np.rint(want))
        if kept:
            np.testing.assert_array_equal(arrays["indices"], places)
    if dtype not in FLOATS or solver in ("large", "whole"):
        return
    dy_storage = from_float64(rng.standard_normal(want.shape), dtype)
    dy, y = lay(dy_storage, layout), lay(from_float64(want, dtype), layout)
    dx = reference.backward(problem, to_float64(dy_storage, dtype), wide, to_float64(from_float64(want, dtype), dtype))
    for kept in ("", "i64") if op == "max" else ("",):
        arrays = {"out": poisoned(shape, dtype, layout), "dy": dy}
        if op == "lp" or (op == "max" and not kept):
            arrays["x"] = x
        if op == "lp":
            arrays["y"] = y
        if kept:
            arrays["indices"] = lay(places, layout)
        own = with_strides(pose(op, "backward", dtype, shape, layout, indices=kept, **window), arrays)
        solve(solver, own, **arrays)
        assert_near(arrays["out"], dx, dtype, 8 * problem.taps, np.abs(dx).max(initial=0))


CASES = {
    "plain": {"shape": (2, 8, 5, 7), "kernel": 2},
    "3x3": {"shape": (1, 4, 7, 9), "kernel": 3, "stride": 2, "before": 1, "after": 1},
    "beside": {"shape": (2, 3, 6, 5), "kernel": (3, 2), "stride": 1, "before": (1, 0), "after": (0, 1)},
    "ceil": {"shape": (1, 6, 6, 7), "kernel": 3, "stride": 2, "before": 1, "after": 1, "ceil_mode": True},
    "dilated": {"shape": (1, 16, 8, 9), "kernel": (2, 3), "stride": (1, 2), "dilation": (3, 2), "before": 1},
    "gaps": {"shape": (1, 5, 9, 8), "kernel": 2, "stride": 3},
    "large": {"shape": (2, 8, 6, 6), "kernel": 5, "stride": 1, "before": 2, "after": 2},
    "adaptive": {"shape": (2, 4, 7, 6), "adaptive": (3, 4)},
    "global": {"shape": (2, 9, 4, 5), "adaptive": (1, 1)},
    "line": {"shape": (2, 8, 23), "kernel": 4, "stride": 3, "before": 2, "after": 1},
    "volume": {"shape": (1, 4, 4, 5, 6), "kernel": (2, 3, 2), "stride": (2, 1, 2), "before": (1, 1, 0), "after": 0},
}  # fmt: skip
#: (solver, operation, type, layout, case, further): together every kernel, type, layout, rank and rule of a window.
FIRST = [
    ("windows", "max", "f32", "channels_first", "3x3", {"special": True}),
    ("windows", "max", "bf16", "channels_last", "plain", {}),
    ("windows", "avg", "f16", "channels_first", "adaptive", {}),
    ("windows", "lp", "f64", "channels_last", "beside", {"p": 2.0}),
    ("large", "max", "f32", "channels_first", "global", {"special": True}),
    ("large", "avg", "u8", "channels_last", "ceil", {}),
    ("whole", "max", "f32", "channels_first", "global", {"special": True}),
    ("whole", "avg", "bf16", "channels_last", "global", {}),
    ("naive", "max", "f32", "strided", "dilated", {"special": True}),
    ("naive", "avg", "i8", "strided", "volume", {}),
    ("naive", "avg", "f64", "strided", "dilated", {"count_include_pad": False}),
    ("naive", "lp", "f32", "channels_first", "line", {"p": 3.0}),
]
LONG = [
    (solver, op, dtype, layout, case, {"special": op == "max"} if op != "lp" else {"p": float(1 + len(case) % 3)})
    for number, (case, op, layout, dtype, solver) in enumerate(
        itertools.product(CASES, ("max", "avg", "lp"), ("channels_first", "channels_last", "strided"), DTYPES, SOLVER)
    )
    if dtype not in ("i32", "i64", "bool") and not (op == "lp" and dtype in ("i8", "u8")) and number % 7 == 0
    if solver != "whole" or (case == "global" and op != "lp" and dtype in FLOATS)
]


def run(cases):
    return pytest.mark.parametrize(
        ("solver", "op", "dtype", "layout", "case", "further"), cases, ids=lambda value: str(value).replace(" ", "")
    )


@run(FIRST)
def test_results(gpu, solver, op, dtype, layout, case, further):
    check(solver, op, dtype, layout=layout, **CASES[case], **further)


@pytest.mark.slow
@run(LONG)
def test_more_results(gpu, solver, op, dtype, layout, case, further):
    check(solver, op, dtype, layout=layout, **CASES[case], **further)


def test_between_multiples_of_16_bytes(gpu, rng):
    """An array that does not begin at one takes the kernel of single channels."""
    channels = 8
    for offset, width in ((0, 8), (1, 1)):
        x = from_float64(rng.standard_normal((1, 4, 4, channels)), "bf16")
        room = np.zeros(x.size + 8, x.dtype)
        x_at = room[offset : offset + x.size].reshape(x.shape)
        x_at[...] = x
        arrays = {"x": np.moveaxis(x_at, -1, 1), "out": poisoned((1, channels, 2, 2), "bf16", "channels_last")}
        solve(
            "windows",
            with_strides(pose("max", "forward", "bf16", (1, channels, 4, 4), "channels_last"), arrays),
            **arrays,
        )
        blocks = to_float64(x, "bf16").reshape(1, 2, 2, 2, 2, channels).max((2, 4))
        np.testing.assert_array_equal(to_float64(arrays["out"], "bf16"), np.moveaxis(blocks, -1, 1))
        assert f"_bf16_2__1__2__2__{width}_" in gpu.launches[-1].entry


def test_widths():
    """As many channels an access as lie side by side and aligned in every array."""
    for channels, dtype, kept, width in (
        (8, "bf16", "", 8),
        (12, "bf16", "", 4),
        (7, "f32", "", 1),
        (8, "f32", "i64", 2),
    ):
        problem = pose("max", "forward", dtype, (2, channels, 4, 4), "channels_last", indices=kept)
        x, out = (16 * channels, 1, 4 * channels, channels), (4 * channels, 1, 2 * channels, channels)
        problem = dataclasses.replace(problem, strides=(out, out if kept else None, x, None, None))
        names = ("out", "x", "indices") if kept else ("out", "x")
        assert Layout(problem, False).width(names) == width
        assert Layout(problem, True).width(names) == 1


def test_long_sums_and_far_arrays():
    """Offsets that 32 bits do not hold are the naive solver's."""
    far = pose("avg", "forward", "f32", (2, 3, 4, 4), "strided")
    near, wide = (1 << 20, 16, 4, 1), (1 << 31, 16, 4, 1)
    for strides, refused in ((near, False), (wide, True)):
        problem = dataclasses.replace(far, strides=((12, 4, 2, 1), None, strides, None, None))
        assert bool(SOLVER["windows"].why_not(problem, H200)) == refused
        assert SOLVER["naive"].why_not(problem, H200) is None
        assert SOLVER["windows"].estimate(problem, H200) < SOLVER["naive"].estimate(problem, H200)
    every = pose("avg", "forward", "i8", (1, 1, 4096, 2048), "channels_first", adaptive=(1, 1))
    problem = dataclasses.replace(every, strides=((1, 1, 1, 1), None, (1 << 23, 1 << 23, 2048, 1), None, None))
    assert "sums" in SOLVER["windows"].why_not(problem, H200)


def test_choice():
    """The reduce engine for whole planes, a thread for each small window."""
    for n, size, layout, window, chosen in (
        (4, 112, "channels_first", {"adaptive": (1, 1)}, "whole"),
        (16, 7, "channels_first", {"adaptive": (1, 1)}, "whole"),
        (4, 112, "channels_first", {"kernel": 3, "stride": 2, "before": 1, "after": 1}, "windows"),
        (2048, 7, "channels_last", {"adaptive": (1, 1)}, "whole"),
    ):
        problem = pose("avg", "forward", "f32", (n, 64, size, size), layout, **window)
        far = {"channels_first": (64 * size**2, size**2, size, 1), "channels_last": (64 * size**2, 1, 64 * size, 64)}[
            layout
        ]
        problem = dataclasses.replace(problem, strides=(far, None, far, None, None))
        able = [solver for solver in SOLVERS if solver.why_not(problem, H200) is None]
        assert min(able, key=lambda solver: solver.estimate(problem, H200)).name == chosen


def test_mutants(rng):
    """Mistakes planted in the kernels of the places and of their gradient."""
    x, dy = rng.standard_normal((1, 2, 5, 5)).astype(np.float32), rng.standard_normal((1, 2, 3, 3)).astype(np.float32)
    window = {"kernel": 3, "stride": 2, "before": 1, "after": 1}
    problem = pose("max", "forward", "f32", x.shape, "channels_first", **window)
    want, places = reference.forward(problem, x)
    dx = reference.backward(problem, dy, x)

    def call():
        made = {
            "x": x,
            "out": poisoned(want.shape, "f32", "channels_first"),
            "indices": poisoned(want.shape, "i64", "channels_first"),
        }
        own = pose("max", "forward", "f32", x.shape, "channels_first", indices="i64", **window)
        solve("windows", with_strides(own, made), **made)
        back = {"dy": dy, "out": poisoned(x.shape, "f32", "channels_first"), "indices": made["indices"]}
        own = pose("max", "backward", "f32", x.shape, "channels_first", indices="i64", **window)
        solve("windows", with_strides(own, back), **back)
        return made["out"], made["indices"], back["out"]

    def same(results):
        for have, expected in zip(results, (want, places, dx), strict=True):
            np.testing.assert_allclose(have, expected, rtol=1e-6)

    caught, missed = hunt(call, same)
    assert len(caught) >= 12
    assert not [str(mutant) for mutant in missed if mutant.kind != "bound off by one"]
