"""The pointwise engine by itself: several results, numbers, single elements, any strides, streams, widths."""

import functools

import numpy as np
import pytest

from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.pointwise import blocks
from numbaprims.cpu.pointwise.emit import emitter
from numbaprims.cpu.pointwise.form import ARGS, Form, Formula, Operand
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import stream_fence
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.value import mad, select
from numbaprims.reference.convert import from_float64, to_float64

GUARD = 77.0


def _both(a, b, c, limit):
    return mad(a, b, c), select(a > limit, a, b)


_emit = emitter({"both": Formula(_both, 1), "first": Formula(lambda a, b, c, limit: _both(a, b, c, limit)[0], 1)})


@functools.cache
def make_kernel(form):
    text, stream = form.text, form.stream

    @range_kernel("test_pointwise", ARGS.types(), spec=(text,))
    def kernel(args, worker, lo, hi):
        _emit(text, args, lo, hi)
        if stream:
            stream_fence()

    return kernel


def form_of(dtype, W, *, stream=False, kinds=("row",) * 3):
    results = (Operand(0, dtype),) if stream else (Operand(0, dtype), Operand(4, dtype))
    operands = tuple(Operand(1 + k, dtype, kind) for k, kind in enumerate(kinds))
    return Form("first" if stream else "both", DTYPES[dtype].accumulate, results, operands, W, stream)


def wanted(values, limit):
    a, b, c = values
    return a * b + c, np.where(a > limit, a, b)


def drawn(shape, dtype, rng):
    """Small integers, of which products and sums are exact."""
    return from_float64(rng.integers(-3, 4, shape).astype(np.float64), dtype)


def equal(got, want, dtype):
    np.testing.assert_array_equal(to_float64(got, dtype), np.broadcast_to(want, got.shape))


@pytest.mark.parametrize("dtype", ("f32", "f64", "f16", "bf16"))
@pytest.mark.parametrize("W", (4, 16, 64))
@pytest.mark.parametrize("stream", (False, True))
def test_runs(dtype, W, stream, rng):
    """Of any length, from any element of a line on, in tiles by one worker and by several; nothing beside them."""
    tile = 128
    for n, begin in ((1, 0), (W - 1, 1), (W, 3), (3 * W + 1, 31), (5 * tile, 0), (5 * tile + 9, 5)):
        a, b, c = (drawn(n, dtype, rng) for _ in range(3))
        rooms = [from_float64(np.full(n + 128, GUARD), dtype) for _ in range(2)]
        outs = [room[begin : begin + n] for room in rooms]
        kernel = make_kernel(form_of(dtype, W, stream=stream))
        program = Program.of(ARGS, {"n": n, "tile": tile}, [(kernel, -(-n // tile), 2)])
        make_launcher(program)(outs[0], a, b, c, outs[1], f0=1.0)
        want = wanted([to_float64(x, dtype) for x in (a, b, c)], 1.0)
        for room, out, each in list(zip(rooms, outs, want, strict=True))[: 1 if stream else 2]:
            equal(out, each, dtype)
            assert (to_float64(room[:begin], dtype) == GUARD).all()
            assert (to_float64(room[begin + n :], dtype) == GUARD).all()


def test_a_single_element_for_all_of_a_run(rng):
    a, b, c = drawn(100, "bf16", rng), drawn(1, "bf16", rng), drawn(1, "bf16", rng)
    outs = from_float64(np.zeros(100), "bf16"), from_float64(np.zeros(100), "bf16")
    kernel = make_kernel(form_of("bf16", 16, kinds=("row", "one", "one")))
    make_launcher(Program.of(ARGS, {"n": 100, "tile": 64}, [(kernel, 2, 1)]))(outs[0], a, b, c, outs[1], f0=0.0)
    for out, want in zip(outs, wanted([to_float64(x, "bf16") for x in (a, b, c)], 0.0), strict=True):
        equal(out, want, "bf16")


SHAPE = (3, 5, 300)
#: Layout -> an array of SHAPE in it.
LAYOUTS = {
    "C": lambda x: x,
    "gaps": lambda x: np.pad(x, ((0, 0), (0, 0), (0, 7)))[..., :300],
    "apart": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "turned": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1),
    "backwards": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "one a row": lambda x: np.broadcast_to(x[..., :1], SHAPE),
    "one row": lambda x: np.broadcast_to(x[:1, :1], SHAPE),
}


@pytest.mark.parametrize("single", (False, True))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ("f32", "f64", "bf16"))
def test_any_strides(dtype, layout, single, rng):
    """One operand in each layout; results in C order, and turned."""
    for out_layout in ("C", "turned"):
        a, b, c = (drawn(SHAPE, dtype, rng) for _ in range(3))
        b = LAYOUTS[layout](b)
        outs = [LAYOUTS[out_layout](from_float64(np.full(SHAPE, GUARD), dtype)) for _ in range(2)]
        strides = [[s // x.itemsize for s in x.strides] for x in (*outs, a, b, c)]
        form, plan, tiles = blocks.any_strides(form_of(dtype, 16), SHAPE, strides, single=single)
        in_place = [operand.kind for operand in form.operands] == ["row", "one", "row"]
        assert in_place == ((layout, out_layout, single) == ("one a row", "C", False))
        compute, size = make_kernel(form), DTYPES[dtype].itemsize
        ints = {"plan": plan.ctypes.data, "compute": compute.address}
        program = Program.of(ARGS, ints, [(blocks.make_blocks(size, size, 32), tiles, 1)], keep=(plan, compute))
        make_launcher(program)(outs[0], a, b, c, outs[1], f0=0.5)
        for out, want in zip(outs, wanted([to_float64(np.array(x), dtype) for x in (a, b, c)], 0.5), strict=True):
            equal(out, want, dtype)


def test_forms_are_read_as_they_are_written():
    form = form_of("f16", 32, kinds=("row", "one", "row"))
    assert Form.parse(form.text) == form and Form.parse(form._replace(stream=True).text).stream
