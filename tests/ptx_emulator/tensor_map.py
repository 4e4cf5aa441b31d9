"""A tensor map (CUtensorMap) of the emulator's own making: 128 bytes that say what a TMA copy needs to know.

The layout of NVIDIA's is secret; `encode` writes ours, with the arguments of cuTensorMapEncodeTiled.
"""

import ctypes
from dataclasses import dataclass

import numpy as np

from .dtypes import Array
from .memory import GLOBAL_BASE

_MAGIC = 0x4E50_5449_4C45_4D31


@dataclass(frozen=True)
class TensorMap:
    address: int
    item: int  # bytes of an element
    shape: tuple[int, ...]  # innermost first, as the driver's function wants them
    strides: tuple[int, ...]  # bytes, of every dimension but the innermost
    box: tuple[int, ...]
    swizzle: int  # 0, 32, 64 or 128 bytes

    def box_bytes(self) -> int:
        return int(np.prod(self.box)) * self.item

    def places(self, origin: list[int]) -> tuple[Array, Array]:
        """Byte offset of each element of the box, outermost first, and whether it lies in the tensor."""
        offsets: Array = np.zeros(1, np.int64)
        valid: Array = np.ones(1, np.bool_)
        for axis, (start, extent) in enumerate(zip(origin, self.box, strict=True)):
            index = start + np.arange(extent)
            step = self.item if axis == 0 else self.strides[axis - 1]
            inside = (index >= 0) & (index < self.shape[axis])
            offsets = (index * step)[:, None] + offsets[None, :]
            valid = inside[:, None] & valid[None, :]
            offsets, valid = offsets.reshape(-1), valid.reshape(-1)
        return offsets, valid

    def gather(self, heap: Array, origin: list[int]) -> Array:
        """The box's bytes, zeros outside the tensor."""
        offsets, valid = self.places(origin)
        result: Array = np.zeros((len(offsets), self.item), np.uint8)
        start = self.address - GLOBAL_BASE + offsets[valid]
        result[valid] = heap[start[:, None] + np.arange(self.item)]
        return result.reshape(-1)


def swizzle(address: Array, span: int) -> Array:
    """Where a 16-byte chunk really goes: chunk index xor row index, within spans of 32, 64 or 128 bytes."""
    if span == 0:
        return address
    rows = {128: 7, 64: 3, 32: 1}[span]
    return address ^ ((address >> 7 & rows) << 4)


def encode(
    address: int,
    item: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle_bytes: int = 0,
) -> Array:
    """The 128 bytes, with the limits of cuTensorMapEncodeTiled checked."""
    rank = len(shape)
    if not (1 <= rank <= 5 and len(box) == rank and len(strides) == rank - 1):
        raise ValueError("a tensor map has 1 to 5 dimensions, and one stride less")
    if address % 16 or any(stride % 16 for stride in strides):
        raise ValueError("address and strides of a tensor map are multiples of 16 bytes")
    if any(not 1 <= extent <= 256 for extent in box) or box[0] * item % 16:
        raise ValueError("a box has 1 to 256 elements an axis and inner rows of a multiple of 16 bytes")
    if swizzle_bytes and box[0] * item > swizzle_bytes:
        raise ValueError(f"inner rows of the box are longer than the swizzle of {swizzle_bytes} bytes")
    words = np.zeros(16, np.uint64)
    words[:4] = [_MAGIC, address, rank | item << 8, swizzle_bytes]
    for axis in range(rank):
        words[4 + axis] = shape[axis] | box[axis] << 40
        if axis:
            words[9 + axis] = strides[axis - 1]
    return words.view(np.uint8)


def move(place: int, address: int) -> None:
    """Let the map at an address of the host be of an array elsewhere."""
    words = (ctypes.c_uint64 * 2).from_address(place)
    if words[0] != _MAGIC or address % 16:
        raise ValueError("no tensor map, or not one of that address")
    words[1] = address


def decode(raw: Array) -> TensorMap | None:
    words = [int(word) for word in np.ascontiguousarray(raw).view(np.uint64)]
    if words[0] != _MAGIC:
        return None
    rank, item = words[2] & 255, words[2] >> 8
    return TensorMap(
        address=words[1],
        item=item,
        shape=tuple(word & (1 << 40) - 1 for word in words[4 : 4 + rank]),
        strides=tuple(words[10 : 9 + rank]),
        box=tuple(word >> 40 for word in words[4 : 4 + rank]),
        swizzle=words[3],
    )
