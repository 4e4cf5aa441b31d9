"""wgmma: 64 x N tiles by the four warps of a warpgroup, operands in shared memory through matrix descriptors."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import access, errors
from ..dtypes import Array, types_of
from ..machine import Batch, Step
from ..operands import Context, Reader
from ..parse import Instruction, elements
from ..registry import collective
from ..tensor_map import swizzle
from .tensor import decode

_ITEM = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1}
_THREAD = np.arange(128)


@dataclass(frozen=True)
class Pending:
    """An operand that a wgmma may still read: overwriting it before the wait for its group is a race."""

    granules: Array
    lane: int
    group: int


def operand_addresses(descriptor: int, rows: int, item: int, transposed: bool) -> Array:
    """Shared byte address of element (row, k) of an operand of 32 bytes along k."""
    start = (descriptor & 0x3FFF) << 4
    leading = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    span = {0: 0, 1: 128, 2: 64, 3: 32}[descriptor >> 62]
    row, k = np.arange(rows)[:, None], np.arange(32 // item)[None, :]
    if transposed:  # rows are contiguous in memory; only 16-bit elements can be
        wide = (span or 16) // item
        inner = k % 8 * (span or 16) + row % wide * item
        address = start + row // wide * leading + k // 8 * stride + inner
        if span == 0:
            address = start + row // wide * stride + k // 8 * leading + inner
    elif span == 0:
        byte = k * item
        address = start + row // 8 * stride + byte // 16 * leading + row % 8 * 16 + byte % 16
    else:
        address = start + row // 8 * stride + row % 8 * span + k * item
    return swizzle(address, span)


@collective(128, "wgmma")
def _multiply(context: Context, ins: Instruction) -> Step:
    words = ins.modifiers
    if words[0] == "wait_group":
        keep = int(ins.operands[0])
        return lambda batch: _wait(batch, keep)
    if words[0] == "commit_group":
        return _commit
    if words[0] != "mma_async":
        return lambda batch: None  # fence: the order of register accesses is not modelled
    if words[1] == "sp":
        raise errors.Unsupported("sparse wgmma")
    shape = next(word for word in words if re.fullmatch(r"m64n\d+k\d+", word))
    columns = int(shape[4 : shape.index("k")])
    target, kind_a, kind_b = types_of(words)
    if kind_a not in _ITEM or target not in ("f32", "s32"):
        raise errors.Unsupported(f"{ins.text}")
    accumulators = elements(ins.operands[0])
    gets = [context.read(name, target) for name in accumulators]
    puts = [context.write(name) for name in accumulators]
    from_registers = ins.operands[1].startswith("{")
    a_registers = [context.read(name, "b32") for name in elements(ins.operands[1])] if from_registers else []
    a_descriptor = None if from_registers else context.read(ins.operands[1], "u64")
    b_descriptor = context.read(ins.operands[2], "u64")
    scale_d = context.read(ins.operands[3], "pred")
    rest = [context.constant(operand) for operand in ins.operands[4:]]
    scale_a, scale_b = (rest[0] or 1, rest[1] or 1) if len(rest) > 1 else (1, 1)
    transposes = [bool(flag) for flag in rest[2:]]
    transpose_a = transposes[0] if len(transposes) > 1 else False
    transpose_b = transposes[-1] if transposes else False

    def multiply(batch: Batch) -> None:
        lanes = batch.lanes.reshape(-1, 128)
        keep = batch.row(scale_d(batch)).reshape(-1, 128)
        old = np.stack([batch.row(get(batch)).reshape(-1, 128) for get in gets], -1)
        new = np.empty_like(old)
        for group, members in enumerate(lanes):
            first = slice(group * 128, group * 128 + 128)
            if a_descriptor is None:
                a = _from_registers(batch, a_registers, first, kind_a)
            else:
                a = _operand(batch, ins, a_descriptor, first, members, 64, kind_a, transpose_a)
            b = _operand(batch, ins, b_descriptor, first, members, columns, kind_b, transpose_b)
            product = scale_a * scale_b * (a @ b.T)
            slot = np.arange(len(accumulators))
            rows = (16 * (_THREAD >> 5) + (_THREAD >> 2 & 7))[:, None] + 8 * (slot >> 1 & 1)
            cols = (_THREAD & 3)[:, None] * 2 + 8 * (slot >> 2) + (slot & 1)
            before = np.where(keep[group][:, None], old[group], 0)
            new[group] = (product[rows, cols] + before).astype(old.dtype)
        for index, put in enumerate(puts):
            put(batch, new[:, :, index].reshape(-1))

    return multiply


def _from_registers(batch: Batch, registers: list[Reader], part: slice, kind: str) -> Array:
    """The m64 fragment: each warp holds 16 rows as an mma.sync A operand."""
    per_register = 4 // _ITEM[kind]
    bits = np.stack([batch.row(get(batch))[part].reshape(4, 32) for get in registers], -1)
    values = decode(bits, kind)
    lane, index = np.arange(32), np.arange(4 * per_register)
    register, j = index // per_register, index % per_register
    row = (lane >> 2)[:, None] + 8 * (register & 1)
    k = (lane & 3)[:, None] * per_register + 4 * per_register * (register >> 1) + j
    result = np.empty((4, 16, 8 * per_register))
    result[:, row, k] = values
    return result.reshape(64, -1)


def _operand(
    batch: Batch,
    ins: Instruction,
    descriptor: Reader,
    part: slice,
    members: Array,
    rows: int,
    kind: str,
    transposed: bool,
) -> Array:
    values = batch.row(descriptor(batch))[part]
    lane = int(members[0])
    if (values != values[0]).any():
        batch.fail(errors.Divergence, ins, lane, "wgmma: the descriptor differs between threads of the warpgroup")
    item = _ITEM[kind]
    if transposed and item != 2:
        raise errors.Unsupported("wgmma: only 16-bit operands can be transposed")
    address = operand_addresses(int(values[0]), rows, item, transposed)
    flat = address.reshape(-1)
    lanes = np.full(len(flat), lane)
    offsets = access.shared_offsets(batch, ins, lanes, flat, item, "wgmma operand read")
    granules = np.unique(offsets // batch.shared.granule)
    one = np.array([lane])
    access.check_shared_state(batch, ins, one, granules[None], True, "wgmma operand read")
    batch.mbarriers.check_proxy(ins, lane, granules, "wgmma")
    if batch.shared_races is not None:
        conflict = batch.shared_races.read(granules[None], one)
        if conflict is not None:
            access.report_race(batch, ins, one, conflict, "wgmma operand read", "shared")
        batch.shared_races.pending_reads[granules] += 1
        batch.tensor_work.append(Pending(granules, lane, int(batch.tensor_groups[batch.warpgroup(lane)])))
    raw: Any = batch.shared.bytes.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[item])[offsets // item]
    return decode(raw, kind).reshape(rows, -1)


def _commit(batch: Batch) -> None:
    batch.tensor_groups[np.unique(batch.warpgroup(batch.lanes))] += 1


def _wait(batch: Batch, keep: int) -> None:
    """Operands of all groups but the last `keep` have been read, at the latest now."""
    races = batch.shared_races
    if races is None:
        return
    here = set(np.unique(batch.warpgroup(batch.lanes)).tolist())
    left = []
    for work in batch.tensor_work:
        warpgroup = int(batch.warpgroup(work.lane))
        if warpgroup in here and work.group < batch.tensor_groups[warpgroup] - keep:
            races.note_reads(work.granules[None], np.array([work.lane]))
            races.pending_reads[work.granules] -= 1
        else:
            left.append(work)
    batch.tensor_work = left
