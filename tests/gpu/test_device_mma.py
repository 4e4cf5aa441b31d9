"""gpu/device/mma.py: fragments, mma.sync in every type, dp4a, wgmma; against NumPy in the emulator."""

import functools

import numpy as np
import pytest
from ptx_emulator import EmulatorError, launch

from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.copy import fence_async, shared_address
from numbaprims.gpu.device.memory import bits_float, float_bits, repeat
from numbaprims.gpu.device.mma import (
    dot4,
    ldmatrix,
    mma,
    round_tf32,
    wgmma,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait,
)  # fmt: skip
from numbaprims.gpu.jit import gpu_kernel, shared_array, thread_index, types

ARCHS = ("sm_80", "sm_90a")
U32 = types.uint32
WORDS = types.CPointer(U32)
ITEMS = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.float32, "i8": np.int8, "u8": np.uint8}
OPCODES = {"f16": "HMMA.16816.F32", "bf16": "HMMA.16816.F32.BF16", "tf32": "HMMA.1688.F32.TF32", "i8": "IMMA.16832",
           "u8": "IMMA.16832"}  # fmt: skip


def draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, as stored and as float64: their sums of products are exact in every type."""
    if dtype in ("i8", "u8"):
        info = np.iinfo(ITEMS[dtype])
        stored = rng.integers(info.min, info.max + 1, shape).astype(ITEMS[dtype])
        return stored, stored.astype(np.float64)
    values = rng.integers(-8, 9, shape).astype(np.float32)
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16), values.astype(np.float64)
    if dtype == "bf16":
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16), values.astype(np.float64)
    return values, values.astype(np.float64)


@functools.cache
def make_mma(a_dtype: str, b_dtype: str, guard: int):
    """One product of a warp: a is 16 rows, b 8 columns, of 32 bytes along k."""
    S = types.int32 if a_dtype in ("i8", "u8") else types.float32
    signature = types.void(types.CPointer(S), WORDS, WORDS)

    @gpu_kernel("test_mma", signature, (a_dtype, b_dtype, guard), threads=32, registers=40)
    def product(out, a, b):
        lane = thread_index()
        row, word = U32(lane >> U32(2)), U32(lane & U32(3))
        at = U32(row * U32(8) + word)
        left = (a[at], a[U32(at + U32(64))], a[U32(at + U32(4))], a[U32(at + U32(68))])
        sums = mma(left, (b[at], b[U32(at + U32(4))]), (S(1), S(2), S(3), S(4)), a_dtype, b_dtype)
        place = U32(row * U32(8) + word * U32(2))
        if lane < U32(guard):  # an mma must not follow its result into this branch
            out[place] = sums[0]
            out[U32(place + U32(1))] = sums[1]
            out[U32(place + U32(64))] = sums[2]
            out[U32(place + U32(65))] = sums[3]

    return product


@pytest.mark.parametrize(
    "a_dtype, b_dtype",
    [("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32"), ("i8", "i8"), ("u8", "i8"), ("u8", "u8"), ("i8", "u8")],
)
def test_mma(a_dtype: str, b_dtype: str):
    rng = np.random.default_rng(0)
    k = 32 // np.dtype(ITEMS[a_dtype]).itemsize
    a, left = draw(rng, a_dtype, (16, k))
    b, right = draw(rng, b_dtype, (8, k))
    out = np.zeros((16, 8), np.int32 if a_dtype in ("i8", "u8") else np.float32)
    kernel = make_mma(a_dtype, b_dtype, 32)
    launch(kernel, 1, 32, out.reshape(-1), a.view(np.uint32).reshape(-1), b.view(np.uint32).reshape(-1))
    start = np.tile([1.0, 2.0], (8, 4))
    np.testing.assert_array_equal(out, left @ right.T + np.concatenate([start, start + 2]))
    for arch in ARCHS:
        used = kernel.resources(arch)
        assert used.spills == used.stack == 0 and (not used.opcodes or used.count(OPCODES[a_dtype]) == 1)


def test_mma_stays_outside_of_branches():
    a, b, out = np.zeros((16, 16), np.uint16), np.zeros((8, 16), np.uint16), np.full((16, 8), 7, np.float32)
    launch(make_mma("bf16", "bf16", 20), 1, 32, out.reshape(-1), a.view(np.uint32).ravel(), b.view(np.uint32).ravel())
    np.testing.assert_array_equal(out[:5], np.tile([1.0, 2.0], (5, 4)))
    assert (out[5:8] == 7).all()


@functools.cache
def make_ldmatrix(transposed: int):
    @gpu_kernel("test_ldmatrix", types.void(WORDS, WORDS), (transposed,), threads=32, registers=40)
    def read(out, x):
        tile = shared_array(128, U32, alignment=16)
        lane = thread_index()
        for i in range(lane, 128, 32):
            tile[i] = x[i]
        barrier()
        words = ldmatrix(shared_address(tile, U32(lane * U32(4))), transposed)
        for matrix in range(4):
            out[U32(U32(32 * matrix) + lane)] = words[matrix]

    return read


@pytest.mark.parametrize("transposed", [0, 1])
def test_ldmatrix(transposed: int):
    x = np.random.default_rng(1).integers(0, 2**16, (4, 8, 8), np.uint16)
    out = np.zeros(128, np.uint32)
    launch(make_ldmatrix(transposed), 1, 32, out, x.reshape(-1).view(np.uint32))
    expected = x.swapaxes(1, 2) if transposed else x
    np.testing.assert_array_equal(out.view(np.uint16).reshape(4, 8, 8), expected)
    assert make_ldmatrix(transposed).resources("sm_80").has("LDSM.16.MT88.4" if transposed else "LDSM.16.M88.4")


@functools.cache
def make_words(a_dtype: str, b_dtype: str):
    signature = types.void(types.CPointer(types.int32), WORDS, WORDS, WORDS)

    @gpu_kernel("test_words", signature, (a_dtype, b_dtype), threads=32)
    def words(out, rounded, a, b):
        i = thread_index()
        out[i] = dot4(a[i], b[i], types.int32(i), a_dtype, b_dtype)
        rounded[i] = round_tf32(float_bits(bits_float(a[i])))

    return words


@pytest.mark.parametrize("a_dtype", ["i8", "u8"])
@pytest.mark.parametrize("b_dtype", ["i8", "u8"])
def test_dot4_and_rounding_to_tf32(a_dtype: str, b_dtype: str):
    rng = np.random.default_rng(2)
    a, left = draw(rng, a_dtype, (32, 4))
    b, right = draw(rng, b_dtype, (32, 4))
    a[0], b[0] = np.iinfo(a.dtype).min, np.iinfo(b.dtype).min
    left[0], right[0] = a[0], b[0]
    out, rounded = np.zeros(32, np.int32), np.zeros(32, np.uint32)
    bits = a.view(np.uint32).reshape(-1)
    launch(make_words(a_dtype, b_dtype), 1, 32, out, rounded, bits, b.view(np.uint32).reshape(-1))
    np.testing.assert_array_equal(out, (left * right).sum(1) + np.arange(32))
    finite = (bits & 0x7F80_0000) != 0x7F80_0000
    np.testing.assert_array_equal(rounded[finite], ((bits + np.uint32(0x1000)) & np.uint32(0xFFFF_E000))[finite])
    assert make_words(a_dtype, b_dtype).resources("sm_80").has("IDP.4A")


def swizzled(x: np.ndarray) -> np.ndarray:
    """Rows of 128 bytes, their 16-byte pieces in the order of the 128-byte swizzle."""
    pieces = x.view(np.uint8).reshape(-1, 8, 16)
    rows = np.arange(len(pieces))
    return pieces[rows[:, None], np.arange(8)[None] ^ (rows[:, None] & 7)].reshape(-1)


@functools.cache
def make_wgmma(dtype: str, n: int, a_transposed: int, b_transposed: int, fenced: bool = True):
    """64 x n sums of products of 128 bytes along k (64 where transposed): out is 128 threads x n / 2 sums."""
    count = n // 2
    integer = dtype == "i8"
    S = types.int32 if integer else types.float32
    a_words, words = 64 * 32, 64 * 32 + max(n, 64) * 32
    # one step of 32 bytes along k: within the swizzled rows, or 16 whole rows of k
    a_step, b_step = (2048 if a_transposed else 32), (2048 if b_transposed else 32)

    @gpu_kernel(
        "test_wgmma", types.void(types.CPointer(S), WORDS, WORDS), (dtype, n, a_transposed, b_transposed, fenced),
        threads=128, shared=4 * words,
    )  # fmt: skip
    def product(out, a, b):
        tile = shared_array(0, U32, alignment=1024)
        thread = thread_index()
        for i in range(thread, a_words, 128):
            tile[i] = a[i]
        for i in range(thread, words - a_words, 128):
            tile[a_words + i] = b[i]
        if fenced:
            fence_async()
        barrier()
        left, right = shared_address(tile, 0), shared_address(tile, a_words)
        sums = repeat(S(0), count)
        wgmma_fence()
        for step in range(4):
            at_a = wgmma_descriptor(U32(left + U32(step * a_step)), 8192, 1024)
            at_b = wgmma_descriptor(U32(right + U32(step * b_step)), 8192, 1024)
            sums = wgmma(sums, at_a, at_b, types.int32(step), dtype, dtype, a_transposed, b_transposed)
        wgmma_commit()
        sums = wgmma_wait(sums, 0)
        for e in range(count):
            out[U32(thread * U32(count) + U32(e))] = sums[e]

    return product


def sums_of(out: np.ndarray, n: int) -> np.ndarray:
    """The 64 x n matrix of 128 threads' sums."""
    thread, slot = np.arange(128)[:, None], np.arange(n // 2)[None]
    result = np.zeros((64, n), out.dtype)
    rows = 16 * (thread >> 5) + (thread >> 2 & 7) + 8 * (slot >> 1 & 1)
    result[rows, 8 * (slot >> 2) + 2 * (thread & 3) + (slot & 1)] = out.reshape(128, -1)
    return result


@pytest.mark.parametrize(
    "dtype, n, a_transposed, b_transposed",
    [("bf16", 64, 0, 0), ("f16", 64, 0, 1), ("bf16", 64, 1, 0), ("tf32", 64, 0, 0), ("i8", 64, 0, 0)],
)
def test_wgmma(dtype: str, n: int, a_transposed: int, b_transposed: int):
    rng = np.random.default_rng(3)
    k = 128 // np.dtype(ITEMS[dtype]).itemsize
    a, left = draw(rng, dtype, (64, k))
    b, right = draw(rng, dtype, (n, k))
    stored = [
        swizzled(np.ascontiguousarray(x.T if transposed else x))
        for x, transposed in ((a, a_transposed), (b, b_transposed))
    ]
    out = np.zeros(64 * n, np.int32 if dtype == "i8" else np.float32)
    kernel = make_wgmma(dtype, n, a_transposed, b_transposed)
    launch(kernel, 1, 128, out, *(x.view(np.uint32) for x in stored), arch="sm_90a")
    np.testing.assert_array_equal(sums_of(out, n), left @ right.T)
    used = kernel.resources("sm_90a")
    assert used.spills == used.stack == 0 and "C7510" not in kernel.image("sm_90a").log  # not serialised
    assert not used.opcodes or used.count("IGMMA" if dtype == "i8" else "HGMMA") == 4


def test_wgmma_without_a_fence_is_found():
    a = np.zeros(64 * 32, np.uint32)
    with pytest.raises(EmulatorError, match="fence"):
        launch(make_wgmma("bf16", 64, 0, 0, False), 1, 128, np.zeros(64 * 64, np.float32), a, a, arch="sm_90a")
