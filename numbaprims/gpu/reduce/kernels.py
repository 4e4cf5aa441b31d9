"""Kernels of a traced formula.

`make_fused` computes all passes in one launch: of `rows`, T neighbouring threads have a row, from one to a block of
them; `across`, neighbouring threads have neighbouring rows, and the warps of a block share their elements.  `make_part`
computes one pass over a chunk of each row, and `make_combine` adds up the chunks' states.

Threads, warps and chunks are merged in a fixed order without atomics: the same bits each time.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.elements import ELEMENT, NUMBER
from numbaprims.gpu.device.memory import repeat
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, warp_index
from numbaprims.gpu.jit import (
    GpuKernel,
    block_index,
    block_index_y,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)
from numbaprims.gpu.reduce.emit import accumulate, at_row, elements, scalars_of, write, write_ones
from numbaprims.gpu.reduce.plans import Plan, plan_of
from numbaprims.gpu.reduce.states import begin, merge_lanes, merge_two, restore, restore_before, save

THREADS = 256
"""Of a block, where a row has no more."""


class Form(NamedTuple):
    """How threads, rows and memory lie; a part of every kernel's spec."""

    across: bool
    T: int
    """Threads of a row; of `across` the warps of a block."""
    V: int
    """Elements of a pack."""
    K: int
    """Packs that a thread loads at a time."""
    held: bool
    """Whether K packs are all of a row: they stay in registers from the first pass to the last."""
    kept: int
    reduced: int
    """Dimensions."""
    beside: int
    """Elements of an access, where those of a row lie side by side along the innermost reduced dimension, else 0.  It
    is V, or 1 where packs are not aligned: what is added to what does not depend on where arrays begin."""
    wide: bool
    """Indices of 64 bits."""
    R: int = 1
    """Rows of a thread; of `across`, where `beside` of them are one access."""

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.T if self.across else THREADS if self.T <= 32 else self.T

    def resident(self, plan: Plan) -> int | None:
        """Blocks that a multiprocessor holds at least: while one waits for memory, another computes.  A thread has 128
        registers then, or 64 in the largest blocks where they suffice."""
        if self.wide:
            return None
        return max(1, 1024 // self.threads) if self.threads > THREADS and plan.light else 2 * THREADS // self.threads

    def sizes(self, dimensions: int) -> int:
        """Numbers that a kernel is given of so many: each but the first with its reciprocal."""
        return dimensions if self.wide else 3 * dimensions - 2

    @property
    def rows(self) -> int:
        """Of a block."""
        return 32 * self.R if self.across else self.threads // self.T


class _Functions(NamedTuple):
    index: Any
    place: Any
    walk: Any
    merged: Any
    shared: int
    parameters: tuple[Any, ...]


@functools.cache
def _functions(key: str, form: Form) -> _Functions:
    """Device functions that kernels of a form share, the numbers of their shared memory, and the types of their first
    parameters: pointers, numbers, kept sizes and steps of every array, reduced sizes and steps, rows, elements."""
    plan = plan_of(key)
    across, T, V, K, held, beside, R = form.across, form.T, form.V, form.K, form.held, form.beside, form.R
    I = types.int64 if form.wide else types.int32  # noqa: E741
    number = NUMBER[plan.number]
    STEP, WARPS = (T, T) if across else (T * V, T // 32)
    ROWS, narrow = form.rows, T <= 32
    most = max(plan.state(p) for p in range(plan.passes))
    state_sizes = tuple(plan.state(p) for p in range(plan.passes))
    again = len(plan.reduced) > 1  # the shared memory is used
    S0, S1 = state_sizes[0], state_sizes[-1]

    @device_function
    def place():  # type: ignore[no-untyped-def]
        """(row, first element, whether this thread speaks for its row); rows may be beyond the last."""
        thread = thread_index()
        if across:
            row = I((I(block_index()) * 32 + I(lane_index())) * R)
            first, speaks = I(warp_index()), warp_index() == 0
        else:
            group = quotient(thread, types.uint32(T))
            lane = I(types.uint32(thread - group * types.uint32(T)))
            row = I(I(block_index()) * ROWS + I(group))
            first, speaks = I(lane * V), lane == 0
        return row, first, speaks

    @device_function
    def walk(p, packs, before, scalars, here, sizes, strides, first, end):  # type: ignore[no-untyped-def]
        """The state of pass p of this thread's elements, whose results of kind "row" are written."""
        state = begin(key, p, R)
        if held:
            state = accumulate(key, p, -1, V, R, state, before, scalars, packs, first, STEP, end)
            write(key, p, -1, V, R, beside, here, sizes, strides, before, scalars, packs, first, STEP, end)
        else:
            at = first
            while at < end:
                loaded = elements(key, p, V, K, R, beside, here, sizes, strides, at, STEP, end)
                state = accumulate(key, p, p, V, R, state, before, scalars, loaded, at, STEP, end)
                write(key, p, p, V, R, beside, here, sizes, strides, before, scalars, loaded, at, STEP, end)
                at = I(at + STEP * K)
        return state

    @device_function
    def merged(p, state, shared, writes):  # type: ignore[no-untyped-def]
        """The state of a whole row, in all of its threads; of `across` in the first warp alone unless `writes`."""
        size = S0 if p == 0 else S1
        whole = state
        if across:
            lane = types.int64(lane_index() * types.uint32(R))
            every, far = types.int64(size * 32 * R), types.int64(32 * R)
            save(shared, types.int64(types.int64(warp_index()) * every + lane), far, state, R)
            barrier()
            if warp_index() == 0 or writes:
                whole = restore(key, p, shared, lane, far, R)
                for warp in range(1, WARPS):
                    more = restore(key, p, shared, types.int64(warp * every + lane), far, R)
                    whole = merge_two(key, p, whole, more, R)
            if again:
                barrier()
        elif narrow:
            whole = merge_lanes(key, p, state, T)
        else:
            part = merge_lanes(key, p, state, 32)
            if lane_index() == 0:
                save(shared, types.int64(types.int64(warp_index()) * size), types.int64(1), part, 1)
            barrier()
            other = types.int64(lane_index() & types.uint32(WARPS - 1))
            whole = merge_lanes(key, p, restore(key, p, shared, types.int64(other * size), types.int64(1), 1), WARPS)
            if again:
                barrier()
        return whole

    pointers = types.Tuple(tuple(types.CPointer(ELEMENT[dtype]) for dtype in plan.dtypes))
    parameters = (
        pointers, types.UniTuple(number, max(1, plan.numbers)),
        types.UniTuple(I, form.sizes(form.kept)), types.UniTuple(I, form.kept * plan.arrays),
        types.UniTuple(I, form.sizes(form.reduced)), types.UniTuple(I, form.reduced * plan.arrays), I, I,
    )  # fmt: skip
    shared = most * 32 * T * R if across else 1 if narrow else most * WARPS
    return _Functions(I, place, walk, merged, shared, parameters)


def _spec(key: str, form: Form) -> tuple[Any, ...]:
    plan = plan_of(key)
    return (key, plan.number, plan.graph.digest, *form)


@functools.cache
def make_fused(key: str, form: Form) -> GpuKernel:
    """All passes of a formula of at most two."""
    plan = plan_of(key)
    own = _functions(key, form)
    I, place, walk, merged, number = own.index, own.place, own.walk, own.merged, NUMBER[plan.number]  # noqa: E741
    V, K, held, beside, count, R = form.V, form.K, form.held, form.beside, own.shared, form.R
    STEP = form.T * (1 if form.across else V)
    numbers_held = max(1, K * V * len(plan.reads(-1)))
    several = R * (len(plan.scalars) + 1)
    second, ones = plan.passes == 2, bool(plan.ones)
    merge0, merge1 = 0 in plan.reduced, 1 in plan.reduced

    @gpu_kernel(
        "reduce",
        types.void(*own.parameters),
        spec=_spec(key, form),
        threads=form.threads,
        blocks_per_sm=form.resident(plan),
    )
    def fused(pointers, numbers, kept, steps, sizes, strides, rows, n):  # type: ignore[no-untyped-def]
        shared = shared_array(count, number)
        wanted, first, speaks = place()
        # a row beyond the last has no elements, and nothing of it is read; but all lanes take part in what follows
        row = I(min(wanted, I(rows - 1)))
        end = n if wanted < rows else I(0)
        here = at_row(key, pointers, kept, steps, row)
        scalars = repeat(number(0.0), several)
        if wanted < rows:
            scalars = scalars_of(key, here, steps, numbers, n, R)
        before = repeat(number(0.0), R)
        packs = before
        if held:
            packs = repeat(number(0.0), numbers_held)
        if held and first < end:
            packs = elements(key, -1, V, K, R, beside, here, sizes, strides, first, STEP, end)
        state = walk(0, packs, before, scalars, here, sizes, strides, first, end)
        if merge0:
            state = merged(0, state, shared, second)
        known = before + state
        if second:
            more = walk(1, packs, known, scalars, here, sizes, strides, first, end)
            if merge1:
                more = merged(1, more, shared, False)
            if ones and speaks and wanted < rows:
                write_ones(key, here, steps, known + more, scalars, R)
        elif ones and speaks and wanted < rows:
            write_ones(key, here, steps, known, scalars, R)

    return fused


@functools.cache
def make_part(key: str, form: Form, p: int) -> GpuKernel:
    """Pass p over chunks of `length` elements of each row; their states go to `chunks`."""
    plan = plan_of(key)
    own = _functions(key, form)
    I, place, walk, merged, number = own.index, own.place, own.walk, own.merged, NUMBER[plan.number]  # noqa: E741
    count, size, reduced, R = own.shared, plan.state(p), p in plan.reduced, form.R
    several = R * (len(plan.scalars) + 1)
    scratch = types.CPointer(number)
    signature = types.void(*own.parameters, I, scratch, scratch)

    @gpu_kernel(
        "reduce_part", signature, spec=(*_spec(key, form), p), threads=form.threads, blocks_per_sm=form.resident(plan)
    )
    def part(pointers, numbers, kept, steps, sizes, strides, rows, n, length, chunks, states):  # type: ignore[no-untyped-def]
        shared = shared_array(count, number)
        wanted, lane, speaks = place()
        row = I(min(wanted, I(rows - 1)))
        chunk = I(block_index_y())
        begins = I(chunk * length)
        # not (chunk + 1) * length, which may be beyond 32 bits where n is not
        end = I(begins + min(length, I(n - begins))) if wanted < rows else I(0)
        here = at_row(key, pointers, kept, steps, row)
        scalars = repeat(number(0.0), several)
        if wanted < rows:
            scalars = scalars_of(key, here, steps, numbers, n, R)
        before = restore_before(key, p, states, types.int64(row), types.int64(rows), R)
        state = walk(p, before, before, scalars, here, sizes, strides, I(begins + lane), end)
        if reduced:
            state = merged(p, state, shared, False)
            if speaks and wanted < rows:
                at = types.int64(types.int64(chunk) * size * types.int64(rows) + types.int64(row))
                save(chunks, at, types.int64(rows), state, R)

    return part


@functools.cache
def make_combine(key: str, form: Form, p: int) -> GpuKernel:
    """The states of pass p from those of its chunks: a warp for each row; after the last, results of kind "one"."""
    plan = plan_of(key)
    own = _functions(key, form)
    I, number, size, begins = own.index, NUMBER[plan.number], plan.state(p), plan.place(p) - 1  # noqa: E741
    ones = bool(plan.ones) and p == plan.reduced[-1]
    ROWS = THREADS // 32
    scratch = types.CPointer(number)
    signature = types.void(*own.parameters, I, scratch, scratch)

    @gpu_kernel("reduce_combine", signature, spec=(*_spec(key, form), p), threads=THREADS)
    def combine(pointers, numbers, kept, steps, sizes, strides, rows, n, count, chunks, states):  # type: ignore[no-untyped-def]
        wanted = I(I(block_index()) * ROWS + I(warp_index()))
        row = I(min(wanted, I(rows - 1)))
        lane, far, every = I(lane_index()), types.int64(row), types.int64(rows)
        state = begin(key, p, 1)
        chunk = lane
        while chunk < count:
            more = restore(key, p, chunks, types.int64(types.int64(chunk) * size * every + far), every, 1)
            state = merge_two(key, p, state, more, 1)
            chunk = I(chunk + 32)
        state = merge_lanes(key, p, state, 32)
        if lane == 0 and wanted < rows:
            save(states, types.int64(begins * every + far), every, state, 1)
            if ones:
                here = at_row(key, pointers, kept, steps, row)
                known = restore_before(key, p, states, far, every, 1) + state
                write_ones(key, here, steps, known, scalars_of(key, here, steps, numbers, n, 1), 1)

    return combine


def _rows(T: int, V: int, K: int, held: bool) -> Form:
    return Form(False, T, V, K, held, 1, 1, V, False)


_ACROSS = Form(True, 8, 1, 4, False, 2, 1, 0, False)
_BESIDE = Form(True, 8, 1, 4, False, 2, 1, 4, False, 4)
_WIDE = Form(False, 32, 1, 4, False, 2, 3, 0, True)
_SUMS = Form(False, 256, 8, 1, False, 1, 2, 1, False)
_TRAIN = "batch_norm_train_running|f32,f32,f32,f32,f32,f32,f32,f32,f32,f32"
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_fused, ("softmax|f32,f32", _rows(32, 4, 8, True)), ("LDG.E.128", "STG.E.128", "SHFL")),
    (make_fused, (_TRAIN, _rows(256, 4, 4, False)), ("LDG.E.128", "STG.E.128", "SHFL")),
    (make_part, ("cross_entropy|f32,f32,f32,f32,bf16,i64", _rows(256, 8, 1, False), 0), ("LDG.E.128", "SHFL")),
    (make_fused, ("softmax|bf16,bf16", _rows(512, 8, 4, True)), ("LDG.E.128", "STG.E.128", "SHFL")),
    (make_fused, ("softmax|f64,f64", _rows(256, 2, 8, True)), ("LDG.E.128", "STG.E.128", "SHFL")),
    (make_fused, ("batch_norm_backward|f32,f32,f32,f32,f32,f32,f32,f32", _rows(32, 4, 4, True)), ("LDG.E.128",)),
    (make_fused, ("softmax_backward|f16,f16,f16", _rows(8, 8, 1, True)), ("LDG.E.128", "STG.E.128", "SHFL")),
    (make_fused, ("log_softmax|f32,f32", _ACROSS), ("LDG.E", "STG.E")),
    (make_fused, ("cross_entropy_weighted|f32,f32,f32,f32,f32,i64,f32", _WIDE), ("LDG.E", "SHFL")),
    (make_part, (_TRAIN, _ACROSS, 0), ("LDG.E",)),
    (make_part, (_TRAIN, _ACROSS, 1), ("STG.E",)),
    (make_part, (_TRAIN, _BESIDE, 0), ("LDG.E.128",)),
    (make_part, (_TRAIN, _BESIDE, 1), ("LDG.E.128", "STG.E.128")),
    (make_fused, ("softmax_backward|bf16,bf16,bf16", _BESIDE._replace(K=1, beside=8, R=8)), ("LDG.E.128", "STG.E.128")),
    (make_fused, (_TRAIN, _rows(512, 4, 7, True)._replace(reduced=2)), ("LDG.E.128", "STG.E.128", "SHFL")),
    (make_fused, ("layer_norm/weight/bias|f32,f32,f32,f32", _rows(32, 4, 6, True)), ("LDG.E.128.CONSTANT", "SHFL")),
    (make_combine, (_TRAIN, _ACROSS, 0), ("SHFL",)),
    (make_part, ("total|f32,f32", _SUMS._replace(V=4, K=4, beside=4), 0), ("LDG.E.128", "SHFL")),
    (make_fused, ("reduce:argmax|i64,f32", _rows(32, 4, 8, True)), ("LDG.E.128", "SHFL")),
    (make_part, ("reduce:var|f32,f32", _ACROSS, 0), ("LDG.E",)),
    (make_fused, ("dynamic_quantize|u8,f32,u8,f32", _rows(32, 4, 8, True)), ("LDG.E.128", "SHFL")),
    (make_part, ("prelu_weight_gradient|bf16,bf16,bf16", _SUMS, 0), ("LDG.E.U16",)),
    (make_part, ("total|f32,f32", _SUMS._replace(V=1, K=4, beside=0, wide=True), 0), ("LDG.E", "SHFL")),
]
