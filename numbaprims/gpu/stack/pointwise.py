"""Stacks without a window: a thread keeps the parameters of its channel, or of a pack of channels, and walks.

The paper starts a block for each channel, which loops over the batch: 64 channels leave half of 132 multiprocessors
without work, and a plane of 7 x 7 three quarters of a block.  Here T threads share a plane, or a part of a large one;
with channels last the packs of a pixel are neighbours, and a thread goes on to the same channels of another pixel.
Either way a warp moves 16 bytes a lane.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.emit import int_literal, intrinsic, string_literal, tuple_of, unpack
from numbaprims.gpu.device.memory import REGISTER, load_wide, store_narrow
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types
from numbaprims.gpu.stack.emit import apply, numbers_at
from numbaprims.gpu.stack.planning import parts_of
from numbaprims.stacks.operations import Step

THREADS = 256
HELD = 32
"""Parameters that a thread keeps."""


@intrinsic
def numbers_of(typingctx, text, pointer, channel, row, step, lanes):  # type: ignore[no-untyped-def]
    """The parameters of a step's operations for so many channels from one on, those of a channel side by side."""
    known, count = string_literal(text), int_literal(lanes)
    if known is None or count is None:
        return None
    numbers = Step.parse(known).numbers

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        every = []
        for lane in range(count):
            start = builder.mul(builder.add(args[2], args[2].type(lane)), args[3])
            every += numbers_at(context, builder, (sig.args[1], args[1]), start, args[4], numbers)
        return tuple_of(context, builder, sig.return_type, [v.value for v in every] or [args[1].type.pointee(0.0)])

    far = types.int64
    made = types.UniTuple(pointer.dtype, max(1, numbers * count))
    return made(text, pointer, far, far, far, lanes), codegen


@intrinsic
def chain(typingctx, text, given, numbers):  # type: ignore[no-untyped-def]
    """A step's operations on a pack; `given` are the pack and behind it those that are added."""
    known = string_literal(text)
    if known is None:
        return None
    step = Step.parse(known)
    operations = parts_of(step).after
    lanes = len(given) // (1 + step.arrays)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        packs, p = ([Value(builder, v) for v in unpack(builder, args[k], sig.args[k])] for k in (1, 2))
        found = []
        for lane in range(lanes):
            v, at = packs[lane], lane * step.numbers if len(p) > step.numbers else 0
            more = iter(packs[lane + lanes :: lanes])
            for operation in operations:
                v = apply(operation, v, p[at : at + operation.numbers], functools.partial(next, more))
                at += operation.numbers
            found.append(v.value)
        return tuple_of(context, builder, sig.return_type, found)

    return types.UniTuple(given.dtype, lanes)(text, given, numbers), codegen


@device_function
def place(image, channel, at, images, channels):  # type: ignore[no-untyped-def]
    """Of an element, in elements."""
    return image * images + channel * channels + at


@functools.cache
def make_pointwise(text: str, dtype: str, V: int, last: bool) -> GpuKernel:
    """A step without a window; packs of V elements of a plane, or of V channels of a pixel if `last`.

    Parameters: pointers; two strides of each array, of images (if `last` of pixels) and of channels, and those of the
    parameters; channels; T, threads of a part of a plane or packs of a pixel; parts of a plane, or pixels that are
    computed at a time; how many of those there are; packs of a plane, or pixels.
    """
    step = Step.parse(text)
    number, far, adds = REGISTER[dtype], types.int64, step.arrays
    data, lanes = types.CPointer(STORAGE[dtype]), V if last else 1
    pointers = types.Tuple((data, data, types.CPointer(number), *[data] * 4))
    signature = types.void(pointers, types.UniTuple(far, 12), far, far, *[types.uint32] * 5)

    @gpu_kernel("stack_pointwise", signature, spec=(text, dtype, V, last), threads=THREADS, registers=128)
    def pointwise(pointers, strides, row, column, channels, T, shares, units, count):  # type: ignore[no-untyped-def]
        thread = types.uint32(block_index() * THREADS + thread_index())
        unit = quotient(thread, T)
        lane = types.uint32(thread - unit * T)
        if unit < units:
            if last:
                channel, image, i, turn = far(lane) * V, far(0), unit, shares
            else:
                plane = quotient(unit, shares)
                i, turn = types.uint32((unit - plane * shares) * T + lane), types.uint32(shares * T)
                whole = quotient(plane, channels)
                channel, image = far(types.uint32(plane - whole * channels)), far(whole)
            numbers = numbers_of(text, pointers[2], channel, row, column, lanes)
            while i < count:
                at = far(i) * V
                if last:
                    image, at = far(i), far(0)
                given = load_wide(pointers[1], place(image, channel, at, strides[2], strides[3]), V, dtype)
                if adds > 0:
                    given = given + load_wide(pointers[3], place(image, channel, at, strides[4], strides[5]), V, dtype)
                if adds > 1:
                    given = given + load_wide(pointers[4], place(image, channel, at, strides[6], strides[7]), V, dtype)
                if adds > 2:
                    given = given + load_wide(pointers[5], place(image, channel, at, strides[8], strides[9]), V, dtype)
                if adds > 3:
                    given = given + load_wide(
                        pointers[6], place(image, channel, at, strides[10], strides[11]), V, dtype
                    )
                to = place(image, channel, at, strides[0], strides[1])
                store_narrow(pointers[0], to, chain(text, given, numbers), dtype)
                i = types.uint32(i + turn)

    return pointwise


_NORM = "batch_norm/3 relu/0"
_VECTORS = ("LDG.E.128", "STG.E.128")
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_pointwise, (_NORM, "f32", 4, False), _VECTORS),
    (make_pointwise, (_NORM, "bf16", 8, True), _VECTORS),
    (make_pointwise, ("scale/1 gelu/0 bias/1 add/0 add/0", "f16", 8, False), _VECTORS),
    (make_pointwise, (f"{_NORM} affine/2 add/0 tanh/0", "f64", 2, True), _VECTORS),
    # rounded twice
    (make_pointwise, ("scale/1 bias/1", "f32", 1, False), ("FMUL", "FADD")),
]
