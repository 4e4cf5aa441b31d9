"""Hopper's asynchronous copies and mbarriers: cp.async.bulk, tensor maps (TMA), mbarrier.*."""

import re

import numpy as np

from .. import access, errors
from ..dtypes import UNSIGNED, Array
from ..machine import Batch, Step
from ..operands import Context, Reader
from ..parse import Instruction, split_operands
from ..registry import instruction
from ..tensor_map import TensorMap, decode, swizzle


def _scalar(batch: Batch, reader: Reader, index: int) -> int:
    return int(np.broadcast_to(reader(batch), (len(batch.lanes),))[index])


def _per_lane(batch: Batch, reader: Reader | None, default: int) -> Array:
    return np.full(len(batch.lanes), default) if reader is None else batch.row(reader(batch)).astype(np.int64)


@instruction("mbarrier")
def _mbarrier(context: Context, ins: Instruction) -> Step:
    action, operands = ins.modifiers[0], list(ins.operands)
    if action == "init":
        address, count = context.address(operands[0]), context.read(operands[1], "u32")
        return _each(lambda b, lane, at, i: b.mbarriers.initialise(ins, lane, at, _scalar(b, count, i)), address)
    if action == "inval":
        return _each(lambda b, lane, at, i: b.mbarriers.invalidate(ins, lane, at), context.address(operands[0]))
    if action in ("arrive", "arrive_drop", "expect_tx"):
        return _arrive(context, ins, operands)
    if action in ("try_wait", "test_wait"):
        return _wait(context, ins)
    raise errors.Unsupported(f"mbarrier.{action}")


def _by_warp(batch: Batch, *columns: Array) -> list[tuple[int, Array]]:
    """The active lanes, parted where the warp or a column differs: (first lane, which of the active ones)."""
    lanes = batch.lanes
    rows = np.stack([lanes >> 5, *(np.asarray(column).astype(np.int64) for column in columns)], 1)
    if (rows == rows[0]).all():
        return [(int(lanes[0]), np.ones(len(lanes), np.bool_))]
    unique, inverse = np.unique(rows, axis=0, return_inverse=True)
    parts = [inverse.reshape(-1) == number for number in range(len(unique))]
    return [(int(lanes[np.argmax(part)]), part) for part in parts]


def _each(action, address: Reader) -> Step:  # type: ignore[no-untyped-def]
    def run(batch: Batch) -> None:
        where = address(batch)
        for index, lane in enumerate(batch.lanes):
            action(batch, int(lane), int(where[index]), index)

    return run


def _arrive(context: Context, ins: Instruction, operands: list[str]) -> Step:
    action = ins.modifiers[0]
    put = None
    if action != "expect_tx":
        target = operands.pop(0) if not operands[0].startswith("[") else "_"
        put = None if target == "_" else context.write(target)
    address = context.address(operands.pop(0))
    extra = context.read(operands[0], "u32") if operands else None
    expects = ins.has("expect_tx")
    if action == "arrive_drop":
        raise errors.Unsupported("mbarrier.arrive_drop")

    def arrive(batch: Batch) -> None:
        where, number = address(batch), _per_lane(batch, extra, 1)
        state = np.zeros(len(batch.lanes), np.uint64)
        for lane, same in _by_warp(batch, where, number):
            first = int(np.argmax(same))
            times, each = int(same.sum()), int(number[first])
            count = 0 if action == "expect_tx" else times if expects else times * each
            state[same] = batch.mbarriers.arrive(ins, lane, int(where[first]), count, times * each if expects else 0)
        if put is not None:
            put(batch, state)

    return arrive


def _wait(context: Context, ins: Instruction) -> Step:
    """With .parity the operand is the parity of a phase, else the state that an arrive gave."""
    put, address = context.write(ins.operands[0]), context.address(ins.operands[1])
    phase = context.read(ins.operands[2], "u32" if ins.has("parity") else "u64")

    def wait(batch: Batch) -> None:
        where, parity = address(batch), batch.row(phase(batch))
        lanes = batch.lanes
        done = np.zeros(len(lanes), np.bool_)
        for lane, same in _by_warp(batch, where, parity):
            first = int(np.argmax(same))
            done[same] = batch.mbarriers.test(ins, lane, int(where[first]), int(parity[first]))
        put(batch, done)
        if done.any():
            batch.idle_yields = 0
        if not done.all():
            batch.wants_yield = True

    return wait


def build(context: Context, ins: Instruction) -> Step:
    """cp.async.bulk in its forms."""
    words = ins.modifiers
    if "commit_group" in words or "wait_group" in words:
        return lambda batch: None  # bulk stores are complete at once
    if "prefetch" in words:
        return lambda batch: None
    if "reduce" in words:
        raise errors.Unsupported(f"{ins.text}")
    to_shared = words.index("global") > next(i for i, word in enumerate(words) if word.startswith("shared"))
    if "tensor" in words:
        return _tensor(context, ins, to_shared)
    if to_shared:
        return _bulk_load(context, ins)
    return _bulk_store(context, ins)


def _bulk_load(context: Context, ins: Instruction) -> Step:
    target, source = context.address(ins.operands[0]), context.address(ins.operands[1])
    size, barrier = context.read(ins.operands[2], "u32"), context.address(ins.operands[3])

    def load(batch: Batch) -> None:
        targets, sources, barriers = target(batch), source(batch), barrier(batch)
        for index, lane in enumerate(batch.lanes):
            nbytes, start, at = _scalar(batch, size, index), int(targets[index]), int(sources[index])
            if nbytes % 16 or start % 16 or at % 16:
                batch.fail(errors.MemoryFault, ins, int(lane), "bulk copy: size and addresses must be multiples of 16")
            data = _read_global(batch, ins, int(lane), at, nbytes)
            _deliver(
                batch, ins, int(lane), start + np.arange(0, nbytes, 16), data.view(np.complex128), int(barriers[index])
            )

    return load


def _read_global(batch: Batch, ins: Instruction, lane: int, address: int, nbytes: int) -> Array:
    where = address + np.arange(0, nbytes, 16)
    words = access.load_global(batch, ins, np.full(len(where), lane), where, 16, 4, "bulk copy read")
    return np.ascontiguousarray(words).view(np.uint8)


def _deliver(batch: Batch, ins: Instruction, lane: int, where: Array, chunks: Array, barrier: int) -> None:
    """Write 16-byte chunks into the lane's shared memory and tell the mbarrier."""
    lanes = np.full(len(where), lane)
    offsets = access.shared_offsets(batch, ins, lanes, where, 16, "bulk copy write")
    granules = access.shared_granules(batch, offsets, 16).reshape(-1)
    batch.mbarriers.begin_bulk_write(ins, lane, granules)
    batch.shared.bytes.view(np.complex128)[offsets // 16] = chunks
    batch.mbarriers.copy_done(ins, lane, barrier, 16 * len(where), granules)


def _bulk_store(context: Context, ins: Instruction) -> Step:
    target, source = context.address(ins.operands[0]), context.address(ins.operands[1])
    size = context.read(ins.operands[2], "u32")

    def store(batch: Batch) -> None:
        targets, sources = target(batch), source(batch)
        for index, lane in enumerate(batch.lanes):
            nbytes = _scalar(batch, size, index)
            chunks = _read_shared(batch, ins, int(lane), int(sources[index]) + np.arange(0, nbytes, 16))
            lanes = np.full(len(chunks), lane)
            where = int(targets[index]) + np.arange(0, nbytes, 16)
            access.store_global(batch, ins, lanes, where, chunks, "bulk copy write")

    return store


def _read_shared(batch: Batch, ins: Instruction, lane: int, where: Array) -> Array:
    lanes = np.full(len(where), lane)
    offsets = access.shared_offsets(batch, ins, lanes, where, 16, "bulk copy read")
    batch.mbarriers.check_proxy(ins, lane, access.shared_granules(batch, offsets, 16), "the bulk copy")
    return access.load_shared(batch, ins, lanes, where, 16, "bulk copy read")


def _tensor(context: Context, ins: Instruction, to_shared: bool) -> Step:
    """cp.async.bulk.tensor.Nd: boxes of a tensor map; what lies outside the tensor is zero, or not written."""
    rank = int(next(word for word in ins.modifiers if re.fullmatch(r"\dd", word))[0])
    if any(word.startswith(("im2col", "multicast")) for word in ins.modifiers):
        raise errors.Unsupported(f"{ins.text}")
    map_operand = ins.operands[1] if to_shared else ins.operands[0]
    inside = split_operands(map_operand[1:-1])
    map_address = context.address(f"[{inside[0]}]")
    coordinates = [context.read(name, "s32") for name in split_operands(inside[1][1:-1])]
    if len(coordinates) != rank:
        raise errors.Unsupported(f"{ins.text}")
    shared = context.address(ins.operands[0] if to_shared else ins.operands[1])
    barrier = context.address(ins.operands[2]) if to_shared else None

    def copy(batch: Batch) -> None:
        places, maps = shared(batch), map_address(batch)
        barriers = barrier(batch) if barrier else None
        for index, lane in enumerate(batch.lanes):
            lane = int(lane)
            tensor = _find_map(batch, ins, lane, int(maps[index]))
            start = int(places[index])
            if start % (128 if tensor.swizzle < 128 else 1024):
                batch.fail(
                    errors.MemoryFault, ins, lane, f"TMA: shared address {start:#x} is misaligned for the swizzle"
                )
            origin = [_scalar(batch, c, index) for c in coordinates]
            chunks = tensor.box_bytes() // 16
            where = swizzle(start + 16 * np.arange(chunks), tensor.swizzle)
            if barriers is not None:
                box = tensor.gather(batch.memory.bytes, origin)
                _deliver(batch, ins, lane, where, box.view(np.complex128), int(barriers[index]))
            else:
                data = np.ascontiguousarray(_read_shared(batch, ins, lane, where)).view(np.uint8)
                _scatter(batch, ins, lane, tensor, origin, data)

    return copy


def _find_map(batch: Batch, ins: Instruction, lane: int, address: int) -> TensorMap:
    if address % 64:
        batch.fail(errors.MemoryFault, ins, lane, "a tensor map that is not aligned to 64 bytes")
    words = access.load(batch, ins, "", np.full(8, lane), address + np.arange(0, 128, 16), 16, 4)
    tensor = decode(words.view(np.uint8))
    if tensor is None:
        batch.fail(errors.Unsupported, ins, lane, "128 bytes that tensor_map.encode did not write")
    assert tensor is not None
    return tensor


def _scatter(batch: Batch, ins: Instruction, lane: int, tensor: TensorMap, origin: list[int], data: Array) -> None:
    offsets, valid = tensor.places(origin)
    item = tensor.item
    values = data.view(UNSIGNED[item])[valid]
    where = offsets[valid] + tensor.address
    access.store_global(batch, ins, np.full(len(where), lane), where, values, "TMA store")
