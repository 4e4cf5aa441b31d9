"""gpu/device/fragments.py: parts of tuples, and sums on their way to 16 bits; against NumPy in the emulator."""

import functools

import numpy as np
import pytest
from ptx_emulator import launch

from numbaprims.gpu.device.copy import shared_address
from numbaprims.gpu.device.fragments import load_pairs, pack_ended, part_of, store_from_shared
from numbaprims.gpu.jit import STORAGE, cuda, gpu_kernel, shared_array, thread_index, types

U32, F32, I32 = types.uint32, types.float32, types.int32
WORDS, FLOATS = types.CPointer(U32), types.CPointer(F32)


def to_float(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@functools.cache
def make_parts():
    @gpu_kernel("test_parts", types.void(FLOATS, FLOATS), (), threads=32, registers=40)
    def parts(out, x):
        i = thread_index()
        values = (x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7])
        two, last = part_of(values, U32(i & U32(3)), 2), part_of(values, 3, 2)
        at = U32(4 * i)
        out[at], out[U32(at + 1)], out[U32(at + 2)], out[U32(at + 3)] = two[0], two[1], last[0], last[1]

    return parts


def test_parts_of_a_tuple():
    """The number of a part may be known at run time only, or a literal."""
    x, out = np.arange(8, dtype=np.float32), np.zeros((32, 4), np.float32)
    launch(make_parts(), 1, 32, out, x)
    np.testing.assert_array_equal(out[:, :2], np.tile(x.reshape(4, 2), (8, 1)))
    np.testing.assert_array_equal(out[:, 2:], np.tile(x[6:], (32, 1)))
    assert make_parts().resources("sm_90a").stack == 0


@functools.cache
def make_end(dtype: str):
    """A lane's sums of two squares, with the addends of their columns; 16 bytes a lane by way of shared memory."""

    @gpu_kernel("test_end", types.void(types.CPointer(STORAGE[dtype]), FLOATS, types.CPointer(STORAGE[dtype]), F32, F32,
                I32), (dtype,), threads=32, registers=64)  # fmt: skip
    def end(out, x, bias, scale, floor, n):
        tile = shared_array(128, U32, alignment=16)
        i = thread_index()
        at = U32(8 * i)
        values = (
            x[at], x[U32(at + 1)], x[U32(at + 2)], x[U32(at + 3)], x[U32(at + 4)], x[U32(at + 5)], x[U32(at + 6)],
            x[U32(at + 7)],
        )  # fmt: skip
        pairs = load_pairs(bias, I32((i & U32(3)) << U32(1)), n, 2)
        words = pack_ended(values, scale, pairs, floor, dtype, dtype)
        first = U32(4 * i)
        tile[first], tile[U32(first + 1)], tile[U32(first + 2)], tile[U32(first + 3)] = words
        cuda.syncwarp()
        store_from_shared(out, at, shared_address(tile, first))

    return end


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("floor", [0.0, -np.inf])
def test_end_of_sums(dtype, floor):
    """Small integers, exact in every type; NaN stays NaN; of the second square, behind the end, nothing is read."""
    rng = np.random.default_rng(1)
    x = rng.integers(-20, 20, (32, 2, 2, 2)).astype(np.float32)  # lane, square, row, column
    x[3, 0, 1, 0] = np.nan
    bias = rng.integers(-9, 9, 16).astype(np.float32)
    halves = bias.astype(np.float16).view(np.uint16) if dtype == "f16" else bias.view(np.uint32) >> np.uint32(16)
    for n in (16, 8):
        out = np.zeros((32, 2, 2, 2), np.uint16)
        launch(make_end(dtype), 1, 32, out, x, halves.astype(np.uint16)[:n], 2.0, floor, n, arch="sm_90a")
        columns = (np.arange(32)[:, None, None] & 3) * 2 + 8 * np.arange(2)[:, None] + np.arange(2)
        expected = np.maximum(2 * x + bias[columns][:, :, None], floor)
        squares = n // 8
        np.testing.assert_array_equal(to_float(out, dtype)[:, :squares], expected[:, :squares])
