"""mma.sync, ldmatrix, stmatrix, movmatrix: one warp, fragments spread over its lanes as the PTX manual draws them.

Products are exact and summed in float64, then rounded once to the accumulator: at least as good as the hardware.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import access, errors
from ..dtypes import Array, bf16_to_f32, tf32_operand, types_of
from ..machine import Batch, Step
from ..operands import Context
from ..parse import Instruction, elements
from ..registry import collective

Reader = Callable[[Batch], Any]

_LANE = np.arange(32)
_GROUP, _MEMBER = _LANE >> 2, _LANE & 3


def decode(bits: Array, kind: str) -> Array:
    """Registers (..., n) of 32 bits, or 64 for f64, to float64 elements (..., n * elements of a register)."""
    bits = np.ascontiguousarray(bits)
    if kind == "tf32":
        return tf32_operand(bits).astype(np.float64)
    if kind == "bf16":
        return bf16_to_f32(bits.view(np.uint16)).astype(np.float64)
    dtype = {"f16": np.float16, "f64": np.float64, "s8": np.int8, "u8": np.uint8}.get(kind)
    if dtype is None:
        raise errors.Unsupported(f"matrix elements {kind}")
    return bits.view(dtype).astype(np.float64)


@functools.cache
def _places(rows: int, depth: int, per_register: int) -> tuple[Array, Array, Array, Array]:
    """Where element (lane, register * elements + j) of A and B lies: (row, k) of A, (k, column) of B."""
    halves = rows // 8  # registers that differ in the row only
    count = halves * depth // (4 * per_register)
    index = np.arange(count * per_register)
    register, j = index // per_register, index % per_register
    row = _GROUP[:, None] + 8 * (register % halves)
    k = _MEMBER[:, None] * per_register + 4 * per_register * (register // halves) + j
    index_b = np.arange(depth // 4)
    k_b = _MEMBER[:, None] * per_register + 4 * per_register * (index_b // per_register) + index_b % per_register
    column = np.broadcast_to(_GROUP[:, None], k_b.shape)
    return np.broadcast_to(row, k.shape), k, k_b, column


def _fragment(batch: Batch, gets: list[Reader], warps: int) -> Array:
    """(warps, 32, registers)."""
    return np.stack([batch.row(get(batch)).reshape(warps, 32) for get in gets], -1)


def _whole_warps(batch: Batch, ins: Instruction) -> int:
    lanes = batch.lanes
    if len(lanes) % 32:  # the block's last warp is short
        batch.fail(errors.Divergence, ins, int(lanes[-1]), f"{ins.opcode} in a warp of fewer than 32 threads")
    return len(lanes) // 32


@collective(32, "mma")
def _multiply(context: Context, ins: Instruction) -> Step:
    if ins.has("sp") or ins.modifiers[0] == "sp":
        raise errors.Unsupported("sparse mma")
    shape = next(word for word in ins.modifiers if re.fullmatch(r"m\d+n\d+k\d+", word))
    rows, columns, depth = map(int, re.findall(r"\d+", shape))
    target, kind, kind_b, source = types_of(ins.modifiers)
    if columns != 8 or not ins.has("row") or not ins.has("col") or ins.has("satfinite", "xor"):
        raise errors.Unsupported(f"mma {ins.text}")
    per_register = {"f16": 2, "bf16": 2, "tf32": 1, "f64": 1, "s8": 4, "u8": 4}.get(kind, 0)
    if not per_register or (shape == "m8n8k4" and kind != "f64"):
        raise errors.Unsupported(f"mma {shape} of {kind}")
    bits = "b64" if kind == "f64" else "b32"
    a, b = ([context.read(name, bits) for name in elements(operand)] for operand in ins.operands[1:3])
    packed = target == "f16"  # two accumulators a register
    c = [context.read(name, "b32" if packed else source) for name in elements(ins.operands[3])]
    puts = [context.write(name) for name in elements(ins.operands[0])]
    row, k, k_b, column = _places(rows, depth, per_register)
    dtype = {"f32": np.float32, "f64": np.float64, "s32": np.int32, "f16": np.float16}[target]

    def multiply(batch: Batch) -> None:
        warps = _whole_warps(batch, ins)
        left = np.empty((warps, rows, depth))
        left[:, row, k] = decode(_fragment(batch, a, warps), kind)
        right = np.empty((warps, depth, 8))
        right[:, k_b, column] = decode(_fragment(batch, b, warps), kind_b)
        product = np.matmul(left, right)
        before = [batch.row(get(batch)).reshape(warps, 32).copy() for get in c]  # d may name the same registers
        if packed:
            for index, (values, put) in enumerate(zip(before, puts, strict=True)):
                old = values.view(np.float16).reshape(warps, 32, 2)
                part = product[:, (_GROUP + 8 * index)[:, None], _MEMBER[:, None] * 2 + np.arange(2)]
                put(batch, (part + old).astype(np.float16).view(np.uint32).reshape(-1))
            return
        for index, (values, put) in enumerate(zip(before, puts, strict=True)):
            part = product[:, _GROUP + 8 * (index >> 1), _MEMBER * 2 + (index & 1)]
            total = part + values
            if target == "s32":  # wraps around
                put(batch, total.astype(np.int64).astype(np.int32).reshape(-1))
            else:
                put(batch, total.astype(dtype).reshape(-1))

    return multiply


def _matrices(ins: Instruction) -> int:
    count = next((word for word in ins.modifiers if word in ("x1", "x2", "x4")), None)
    if count is None or not ins.has("m8n8") or not ins.has("b16"):
        raise errors.Unsupported(f"{ins.text}")
    return int(count[1])


@collective(32, "ldmatrix")
def _load_matrix(context: Context, ins: Instruction) -> Step:
    """Lane 8i+r gives the address of row r of matrix i; lane 4r+c gets elements 2c and 2c+1 of row r."""
    count = _matrices(ins)
    puts = [context.write(name) for name in elements(ins.operands[0])]
    address = context.address(ins.operands[1])
    transposed = ins.has("trans")

    def load(batch: Batch) -> None:
        warps = _whole_warps(batch, ins)
        lanes = batch.lanes
        giving = (lanes & 31) < 8 * count
        bits = access.load_shared(batch, ins, lanes[giving], address(batch)[giving], 16, "ldmatrix read")
        tiles = np.ascontiguousarray(bits).view(np.uint16).reshape(warps, count, 8, 8)
        if transposed:
            tiles = tiles.transpose(0, 1, 3, 2)
        pairs = np.ascontiguousarray(tiles).view(np.uint32).reshape(warps, count, 32)
        for index, put in enumerate(puts):
            put(batch, pairs[:, index].reshape(-1))

    return load


@collective(32, "stmatrix")
def _store_matrix(context: Context, ins: Instruction) -> Step:
    count = _matrices(ins)
    gets = [context.read(name, "b32") for name in elements(ins.operands[1])]
    address = context.address(ins.operands[0])
    transposed = ins.has("trans")

    def store(batch: Batch) -> None:
        warps = _whole_warps(batch, ins)
        lanes = batch.lanes
        fragment = _fragment(batch, gets, warps)  # (warps, 32, matrices)
        tiles = np.ascontiguousarray(fragment.transpose(0, 2, 1)).view(np.uint16).reshape(warps, count, 8, 8)
        if transposed:
            tiles = tiles.transpose(0, 1, 3, 2)
        rows = np.ascontiguousarray(tiles).reshape(-1, 8).view(np.complex128)[:, 0]
        giving = (lanes & 31) < 8 * count
        access.store_shared(batch, ins, lanes[giving], address(batch)[giving], rows, "stmatrix write")

    return store


@collective(32, "movmatrix")
def _transpose(context: Context, ins: Instruction) -> Step:
    get, put = context.read(ins.operands[1], "b32"), context.write(ins.operands[0])

    def transpose(batch: Batch) -> None:
        warps = _whole_warps(batch, ins)
        tiles = np.ascontiguousarray(batch.row(get(batch))).view(np.uint16).reshape(warps, 8, 8)
        put(batch, np.ascontiguousarray(tiles.transpose(0, 2, 1)).view(np.uint32).reshape(-1))

    return transpose
