"""Loads and stores of a batch: bounds, alignment, initialisation and races, then the bytes."""

from typing import Any

import numpy as np

from . import errors
from .dtypes import UNSIGNED, Array
from .machine import Batch
from .memory import FREE, FRESH, GLOBAL_BASE, IN_FLIGHT, LOCAL_WINDOW, PARAM_WINDOW, READY, SHARED_WINDOW, WINDOW_BYTES
from .parse import Instruction
from .races import Conflict

_READY_WORD = {n: np.frombuffer(bytes([READY]) * n, UNSIGNED[n])[0] for n in UNSIGNED}


def check_alignment(batch: Batch, ins: Instruction, lanes: Array, address: Array, nbytes: int, what: str) -> None:
    wrong = address & (nbytes - 1)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        batch.fail(errors.MemoryFault, ins, lanes[at], f"misaligned {nbytes}-byte {what} at {int(address[at]):#x}")


def shared_offsets(batch: Batch, ins: Instruction, lanes: Array, address: Array, nbytes: int, what: str) -> Array:
    """Byte offsets into the batch's shared memory, checked."""
    check_alignment(batch, ins, lanes, address, nbytes, f"shared {what}")
    size = batch.shared.nbytes
    if len(address) and (int(address.min()) < 0 or int(address.max()) + nbytes > size):
        at = int(np.flatnonzero((address < 0) | (address + nbytes > size))[0])
        batch.fail(
            errors.MemoryFault, ins, lanes[at],
            f"shared {what} out of bounds: byte {int(address[at])}, the block has {size}",
        )  # fmt: skip
    return address + batch.shared_row[lanes]


def shared_granules(batch: Batch, offsets: Array, nbytes: int) -> Array:
    granule = batch.shared.granule
    first = offsets // granule
    count = max(1, nbytes // granule)
    return first[:, None] + np.arange(count) if count > 1 else first[:, None]


def report_race(batch: Batch, ins: Instruction, lanes: Array, conflict: Conflict, what: str, space: str) -> None:
    if space == "shared":
        row = batch.shared.stride // batch.shared.granule
        place = f"byte {conflict.granule % row * batch.shared.granule} of shared memory"
        copy = conflict.other >= batch.threads
        other = "an asynchronous copy" if copy else f"thread {int(batch.thread[conflict.other])}"
    else:
        assert batch.global_races is not None
        address = GLOBAL_BASE + conflict.granule * batch.global_races.granule
        place = batch.memory.describe(address)
        block, thread = divmod(conflict.other, batch.padded)
        other = f"block {block} thread {thread}"
    batch.fail(
        errors.DataRace, ins, lanes[conflict.position],
        f"{space} race: {what} of {place}, which {other} {conflict.kind} with nothing to order the two",
    )  # fmt: skip


def check_shared_state(batch: Batch, ins: Instruction, lanes: Array, granules: Array, reads: bool, what: str) -> None:
    if not reads and batch.tensor_work:
        _check_pending(batch, ins, lanes, granules, what)
    state = batch.shared.state[granules]
    bad = state != READY if reads and batch.checks.uninitialised else (state == FREE)
    if not reads and batch.checks.races:
        bad = bad | (state == IN_FLIGHT)
    if not bad.any():
        return
    at, column = (int(axis[0]) for axis in np.nonzero(bad))
    row = batch.shared.stride // batch.shared.granule
    place = f"byte {int(granules[at, column]) % row * batch.shared.granule} of shared memory"
    kind, message = {
        FREE: (errors.MemoryFault, f"shared {what} out of bounds: {place} belongs to no array"),
        FRESH: (errors.UninitialisedRead, f"{what} of uninitialised {place}"),
        IN_FLIGHT: (errors.DataRace, f"{what} of {place} while an asynchronous copy into it has not completed"),
    }[int(state[at, column])]
    batch.fail(kind, ins, lanes[at], message)


def _check_pending(batch: Batch, ins: Instruction, lanes: Array, granules: Array, what: str) -> None:
    assert batch.shared_races is not None
    pending = batch.shared_races.pending_reads[granules] > 0
    if pending.any():
        at = int(np.nonzero(pending)[0][0])
        batch.fail(
            errors.DataRace, ins, lanes[at], f"{what} of what a wgmma may still read: its group is not waited for"
        )


def load_shared(batch: Batch, ins: Instruction, lanes: Array, address: Array, nbytes: int, what: str = "read") -> Array:
    """The bytes as one unsigned integer (complex128 for 16) for each lane."""
    offsets = shared_offsets(batch, ins, lanes, address, nbytes, what)
    granules = shared_granules(batch, offsets, nbytes)
    check_shared_state(batch, ins, lanes, granules, True, what)
    if batch.shared_races is not None:
        conflict = batch.shared_races.read(granules, lanes)
        if conflict is not None:
            report_race(batch, ins, lanes, conflict, what, "shared")
    return batch.shared.bytes.view(UNSIGNED[nbytes])[offsets // nbytes]


def store_shared(
    batch: Batch, ins: Instruction, lanes: Array, address: Array, values: Array, what: str = "write"
) -> None:
    """`values`: one unsigned integer (complex128 for 16 bytes) for each lane."""
    nbytes = values.itemsize
    offsets = shared_offsets(batch, ins, lanes, address, nbytes, what)
    granules = shared_granules(batch, offsets, nbytes)
    check_shared_state(batch, ins, lanes, granules, False, what)
    races = batch.shared_races
    if races is not None:
        conflict = races.write(granules, lanes)
        if conflict is not None:
            report_race(batch, ins, lanes, conflict, what, "shared")
    view = batch.shared.bytes.view(UNSIGNED[nbytes])
    view[offsets // nbytes] = values
    batch.shared.state[granules] = READY
    if races is not None:
        lost = races.lost_writes(granules, lanes)
        if lost.any():  # harmless if all of them wrote the same
            mine = np.ascontiguousarray(values[lost]).view(np.uint8).reshape(-1, nbytes)
            there = np.ascontiguousarray(view[offsets[lost] // nbytes]).view(np.uint8).reshape(-1, nbytes)
            differ = (mine != there).any(1)
            if differ.any():
                at = int(np.flatnonzero(lost)[np.flatnonzero(differ)[0]])
                other = int(races.writer[granules[at, 0]])
                report_race(batch, ins, lanes, Conflict(at, other, int(granules[at, 0]), "wrote"), what, "shared")
    batch.mbarriers.note_generic_write(granules, lanes)


def global_offsets(
    batch: Batch, ins: Instruction, lanes: Array, address: Array, nbytes: int, what: str
) -> tuple[Array, bool]:
    """Byte offsets into the heap, and whether all lanes lie in one allocation whose bytes are all written."""
    check_alignment(batch, ins, lanes, address, nbytes, f"global {what}")
    memory = batch.memory
    low, high = int(address.min()), int(address.max())
    offsets = address - GLOBAL_BASE
    found = memory.find(low)
    if found is not None and high + nbytes <= found.address + found.nbytes:
        return offsets, memory.is_ready(found)
    outside = (offsets < 0) | (offsets + nbytes > len(memory.state))
    inside = np.where(outside, 0, offsets)
    outside |= (memory.state[inside] == FREE) | (memory.state[inside + nbytes - 1] == FREE)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        batch.fail(
            errors.MemoryFault, ins, lanes[at], f"global {what} out of bounds: {memory.describe(int(address[at]))}"
        )
    return offsets, False


def launch_threads(batch: Batch, lanes: Array) -> Array:
    """Numbers of the lanes over all blocks of the launch."""
    return lanes + batch.first * batch.padded


def global_granules(batch: Batch, offsets: Array, nbytes: int) -> Array:
    assert batch.global_races is not None
    granule = batch.global_races.granule
    first = offsets // granule
    count = max(1, nbytes // granule)
    return first[:, None] + np.arange(count) if count > 1 else first[:, None]


def load_global(
    batch: Batch, ins: Instruction, lanes: Array, address: Array, nbytes: int, item: int, what: str = "read"
) -> Array:
    offsets, ready = global_offsets(batch, ins, lanes, address, nbytes, what)
    if not ready and batch.checks.uninitialised:
        state = batch.memory.state[offsets[:, None] + np.arange(0, nbytes, item)]
        if (state != READY).any():
            at = int(np.nonzero(state != READY)[0][0])
            batch.fail(
                errors.UninitialisedRead, ins, lanes[at],
                f"{what} of uninitialised global memory: {batch.memory.describe(int(address[at]))}",
            )  # fmt: skip
    races = batch.global_races
    if races is not None and races.wrote:
        granules = global_granules(batch, offsets, nbytes)
        conflict = races.check(batch.clocks, granules, launch_threads(batch, lanes), batch.first, what)
        if conflict is not None:
            report_race(batch, ins, lanes, conflict, what, "global")
    return batch.memory.bytes.view(UNSIGNED[nbytes])[offsets // nbytes]


def store_global(
    batch: Batch, ins: Instruction, lanes: Array, address: Array, values: Array, what: str = "write"
) -> None:
    nbytes = values.itemsize
    offsets, ready = global_offsets(batch, ins, lanes, address, nbytes, what)
    races = batch.global_races
    if races is not None:
        granules, threads = global_granules(batch, offsets, nbytes), launch_threads(batch, lanes)
        conflict = races.check(batch.clocks, granules, threads, batch.first, what)
        if conflict is not None:
            report_race(batch, ins, lanes, conflict, what, "global")
        races.note(batch.clocks, granules, threads, batch.first)
        lost = (races.writer[granules] != threads[:, None] + 1).any(1)
    view = batch.memory.bytes.view(UNSIGNED[nbytes])
    view[offsets // nbytes] = values
    if not ready:
        batch.memory.state.view(UNSIGNED[nbytes])[offsets // nbytes] = _READY_WORD[nbytes]
    if races is not None and lost.any():
        mine = np.ascontiguousarray(values[lost]).view(np.uint8).reshape(-1, nbytes)
        there = np.ascontiguousarray(view[offsets[lost] // nbytes]).view(np.uint8).reshape(-1, nbytes)
        differ = (mine != there).any(1)
        if differ.any():
            at = int(np.flatnonzero(lost)[np.flatnonzero(differ)[0]])
            other = int(races.writer[granules[at, 0]]) - 1
            report_race(batch, ins, lanes, Conflict(at, other, int(granules[at, 0]), "wrote"), what, "global")


def local_offsets(batch: Batch, ins: Instruction, lanes: Array, address: Array, nbytes: int, what: str) -> Array:
    check_alignment(batch, ins, lanes, address, nbytes, f"local {what}")
    bad = (address < 0) | (address + nbytes > batch.local.nbytes)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        batch.fail(
            errors.MemoryFault, ins, lanes[at],
            f"local {what} out of bounds: byte {int(address[at])} of {batch.local.nbytes}",
        )  # fmt: skip
    return address + lanes * batch.local.stride


def load_parameters(batch: Batch, ins: Instruction, lanes: Array, address: Array, nbytes: int) -> Array:
    check_alignment(batch, ins, lanes, address, nbytes, "param read")
    raw = batch.launch.parameters
    bad = address + nbytes > len(raw)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        batch.fail(errors.MemoryFault, ins, lanes[at], f"read of byte {int(address[at])} of {len(raw)} of parameters")
    return np.ascontiguousarray(raw[address[:, None] + np.arange(nbytes)]).view(UNSIGNED[nbytes])[:, 0]


def load(batch: Batch, ins: Instruction, space: str, lanes: Array, address: Array, nbytes: int, item: int) -> Array:
    if space == "shared":
        return load_shared(batch, ins, lanes, address, nbytes)
    if space in ("global", "const"):
        return load_global(batch, ins, lanes, address, nbytes, item)
    if space == "local":
        offsets = local_offsets(batch, ins, lanes, address, nbytes, "read")
        state = batch.local.state[offsets[:, None] + np.arange(0, nbytes, item)]
        if batch.checks.uninitialised and (state != READY).any():
            at = int(np.nonzero(state != READY)[0][0])
            batch.fail(errors.UninitialisedRead, ins, lanes[at], "read of uninitialised local memory")
        return batch.local.bytes.view(UNSIGNED[nbytes])[offsets // nbytes]
    if space == "param":
        return load_parameters(batch, ins, lanes, address, nbytes)
    result: Array = np.empty(len(lanes), UNSIGNED[nbytes])
    for name, chosen, base in windows(address):
        result[chosen] = load(batch, ins, name, lanes[chosen], address[chosen] - base, nbytes, item)
    return result


def store(batch: Batch, ins: Instruction, space: str, lanes: Array, address: Array, values: Array) -> None:
    if space == "shared":
        store_shared(batch, ins, lanes, address, values)
    elif space == "global":
        store_global(batch, ins, lanes, address, values)
    elif space == "local":
        offsets = local_offsets(batch, ins, lanes, address, values.itemsize, "write")
        batch.local.bytes.view(values.dtype)[offsets // values.itemsize] = values
        batch.local.state.view(values.dtype)[offsets // values.itemsize] = _READY_WORD[values.itemsize]
    elif space in ("const", "param"):
        batch.fail(errors.MemoryFault, ins, int(lanes[0]), "write to constant memory")
    else:
        for name, chosen, base in windows(address):
            store(batch, ins, name, lanes[chosen], address[chosen] - base, values[chosen])


def windows(address: Array) -> list[tuple[str, Any, int]]:
    """Which generic addresses lie in which space: (space, lanes, base of its window)."""
    parts = []
    for name, base in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW)):
        inside = (address >= base) & (address < base + WINDOW_BYTES)
        if inside.any():
            parts.append((name, inside, base))
    rest = (address < SHARED_WINDOW) | (address >= PARAM_WINDOW + WINDOW_BYTES)
    if rest.any():
        parts.append(("global", rest, 0))
    return parts
