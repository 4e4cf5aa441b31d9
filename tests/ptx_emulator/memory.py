"""Global memory with an allocation table and red zones; shared and local memory of a batch of blocks.

Each byte of global memory has a state (FREE, FRESH, READY); shared memory has one for each granule. An access in a red
zone, or in anything that was freed, is a fault: allocations keep their exact size, not that of an aligned block.
"""

from dataclasses import dataclass

import numpy as np

from .dtypes import Array

FREE, FRESH, READY, IN_FLIGHT = 0, 1, 2, 3  # not allocated; allocated, never written; written; being copied into
REUSE_FROM = 64 << 20  # bytes, above which freed memory is given out again
RED_ZONE = 256  # bytes between two allocations; also the alignment that cuMemAlloc promises

# Generic addresses: shared and local memory and the parameters are windows, everything else is global.
GLOBAL_BASE = 0x7000_0000_0000
SHARED_WINDOW = 0x1_0000_0000
LOCAL_WINDOW = 0x2_0000_0000
PARAM_WINDOW = 0x3_0000_0000
WINDOW_BYTES = 0x1_0000_0000


@dataclass
class Allocation:
    address: int
    nbytes: int
    label: str
    ready: bool  # every byte is known to be written, so that loads need not look


class GlobalMemory:
    """A flat store of bytes. Freed addresses are used again late, so that a dangling pointer is seen."""

    def __init__(self) -> None:
        self.bytes: Array = np.zeros(1 << 16, np.uint8)
        self.state: Array = np.zeros(1 << 16, np.uint8)
        self.top = 0
        self.allocations: dict[int, Allocation] = {}
        self._starts: Array | None = None  # sorted addresses, made again after a change

    def allocate(self, nbytes: int, label: str = "", data: Array | bytes | None = None, align: int = 256) -> int:
        if not self.allocations:
            self.top = 0
        start = -(-(self.top + RED_ZONE) // align) * align
        if start + nbytes > REUSE_FROM:
            start = self._gap(nbytes, align, start)
        need = start + nbytes + RED_ZONE
        if need > len(self.bytes):
            capacity = -(-max(need, 2 * len(self.bytes)) // 64) * 64
            self.bytes = np.concatenate([self.bytes, np.zeros(capacity - len(self.bytes), np.uint8)])
            self.state = np.concatenate([self.state, np.zeros(capacity - len(self.state), np.uint8)])
        self.top = max(self.top, start + nbytes)
        address = GLOBAL_BASE + start
        self.allocations[address] = Allocation(address, nbytes, label, False)
        self._starts = None
        self.state[start : start + nbytes] = FRESH
        # what nobody wrote reads as NaN in every float format, and as -1 in every integer one
        self.bytes[start : start + nbytes] = 0xFF
        if data is not None:
            self.write(address, data)
        return address

    def _gap(self, nbytes: int, align: int, otherwise: int) -> int:
        """The first hole between allocations that takes so many bytes and its red zones."""
        end = 0
        for allocation in sorted(self.allocations.values(), key=lambda a: a.address):
            start = -(-(end + RED_ZONE) // align) * align
            if start + nbytes + RED_ZONE <= allocation.address - GLOBAL_BASE:
                return start
            end = allocation.address - GLOBAL_BASE + allocation.nbytes
        return otherwise

    def free(self, address: int) -> None:
        allocation = self.allocations.pop(address, None)
        if allocation is None:
            raise ValueError(f"free of {address:#x}, which is not the start of an allocation")
        self._starts = None
        start = address - GLOBAL_BASE
        self.state[start : start + allocation.nbytes] = FREE

    def write(self, address: int, data: Array | bytes) -> None:
        """From the host, with bounds checked."""
        raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1)
        raw = raw.view(np.uint8)
        start = self._host(address, len(raw))
        self.bytes[start : start + len(raw)] = raw
        self.state[start : start + len(raw)] = READY

    def read(self, address: int, nbytes: int) -> Array:
        start = self._host(address, nbytes)
        return self.bytes[start : start + nbytes].copy()

    def _host(self, address: int, nbytes: int) -> int:
        if nbytes:
            found = self.find(address)
            if found is None or address + nbytes > found.address + found.nbytes:
                raise ValueError(f"{nbytes} bytes at {address:#x} do not lie in one allocation")
        return address - GLOBAL_BASE

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds the address."""
        if self._starts is None:
            self._starts = np.array(sorted(self.allocations), np.int64)
        index = int(np.searchsorted(self._starts, address, side="right")) - 1
        if index < 0:
            return None
        found = self.allocations[int(self._starts[index])]
        return found if address < found.address + max(found.nbytes, 1) else None

    def is_ready(self, allocation: Allocation) -> bool:
        """Whether every byte has been written; looked up once, then remembered."""
        if not allocation.ready:
            start = allocation.address - GLOBAL_BASE
            allocation.ready = bool((self.state[start : start + allocation.nbytes] == READY).all())
        return allocation.ready

    def describe(self, address: int) -> str:
        """Where a bad address lies, in the words of the nearest allocation."""
        best, distance = None, 1 << 20
        for allocation in self.allocations.values():
            past = max(allocation.address - address, address - (allocation.address + allocation.nbytes - 1), 0)
            if past < distance:
                best, distance = allocation, past
        if best is None:
            return f"{address:#x}, near no allocation"
        name = best.label or f"the allocation at {best.address:#x}"
        return f"byte {address - best.address} of {name} ({best.nbytes} bytes)"


class BlockMemory:
    """Shared memory of a batch of blocks, or local memory of its threads: rows of equal length, one per owner."""

    def __init__(self, owners: int, nbytes: int, valid: Array | None = None, granule: int = 1) -> None:
        self.nbytes = nbytes
        self.stride = -(-max(nbytes, 1) // 64) * 64
        self.granule = granule
        self.bytes: Array = np.full(owners * self.stride, 0xFF, np.uint8)
        row = np.zeros(self.stride // granule, np.uint8)
        if valid is None:
            row[: nbytes // granule] = FRESH
        else:
            row[: len(valid) // granule] = np.where(valid[::granule], FRESH, FREE)
        self.state: Array = np.tile(row, owners)
