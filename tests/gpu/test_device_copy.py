"""gpu/device/copy.py: asynchronous copies of every size, bulk and tensor copies, barriers; in the emulator."""

import functools

import numpy as np
import pytest
from ptx_emulator import EmulatorError, launch, tensor_map
from ptx_emulator.driver import EmulatedDriver

from numbaprims.gpu import driver
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.copy import (
    bulk_copy,
    copy_async,
    copy_async_partial,
    copy_commit,
    copy_wait,
    fence_async,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    shared_address,
    tensor_copy,
)  # fmt: skip
from numbaprims.gpu.device.memory import load_shared, store_shared
from numbaprims.gpu.jit import gpu_kernel, shared_array, thread_index, types

ARCHS = ("sm_80", "sm_90a")
U32, I32 = types.uint32, types.int32
THREADS = 64
BYTES = types.CPointer(types.uint8)


@functools.cache
def make_copies(size: int, partial: bool, wait: bool = True):
    """Two groups of copies, `size` bytes a thread; out = what arrived, the second group first."""
    words = 2 * THREADS * size // 4
    half = words // 2

    @gpu_kernel("test_copies", types.void(types.CPointer(U32), BYTES, I32), (size, partial, wait), threads=THREADS)
    def copies(out, x, valid):
        tile = shared_array(words, U32, alignment=16)
        i = thread_index()
        for group in range(2):
            at = U32((U32(group * THREADS) + i) * U32(size))
            target = U32(shared_address(tile, 0) + at)
            if partial:
                copy_async_partial(target, x, at, size, min(max(valid - I32(at), I32(0)), I32(size)))
            else:
                copy_async(target, x, at, size)
            copy_commit()
        copy_wait(1)
        barrier()
        for w in range(i, half, THREADS):
            out[U32(U32(half) + U32(w))] = tile[w]
        if wait:
            copy_wait(0)
            barrier()
        for w in range(i, half, THREADS):
            out[w] = tile[U32(half) + U32(w)]

    return copies


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("valid", [None, 0, 1, 333, 10**6])
def test_copies(size: int, valid: int | None):
    x = np.random.default_rng(size).integers(1, 256, 2 * THREADS * size, np.uint8)
    given = x if valid is None else x[: min(max(valid, 1), len(x))].copy()  # nothing past `valid` may be read
    out = np.zeros(len(x) // 4, np.uint32)
    launch(make_copies(size, valid is not None), 1, THREADS, out, given, 0 if valid is None else min(valid, len(x)))
    expected = x.copy()
    if valid is not None:
        expected[valid:] = 0
    np.testing.assert_array_equal(np.roll(out, len(out) // 2).view(np.uint8), expected)


def test_a_copy_that_nobody_waited_for_is_found():
    out, x = np.zeros(2 * THREADS * 4, np.uint32), np.zeros(2 * THREADS * 16, np.uint8)
    with pytest.raises(EmulatorError):
        launch(make_copies(16, False, False), 1, THREADS, out, x, 0)


@pytest.mark.parametrize("arch", ARCHS)
def test_copies_are_asynchronous_instructions(arch: str):
    assert make_copies(16, True).resources(arch).has("LDGSTS.E.BYPASS.128", "LDGDEPBAR")
    assert make_copies(4, False).resources(arch).has("LDGSTS.E")


@functools.cache
def make_words():
    @gpu_kernel("test_words", types.void(types.CPointer(U32), types.CPointer(U32)), (), threads=THREADS)
    def words(out, x):
        tile = shared_array(THREADS, U32, alignment=16)
        i = thread_index()
        base = shared_address(tile, 0)
        store_shared(U32(base + i * U32(4)), types.uint16(x[i] & U32(0xFFFF)))
        store_shared(U32(base + i * U32(4) + U32(2)), types.uint8(x[i] >> U32(16)))
        store_shared(U32(base + i * U32(4) + U32(3)), types.uint8(x[i] >> U32(24)))
        barrier()
        out[i] = load_shared(U32(base + (U32(THREADS - 1) - i) * U32(4)))

    return words


def test_access_by_address():
    x = np.random.default_rng(3).integers(0, 2**32, THREADS, np.uint32)
    out = np.zeros_like(x)
    launch(make_words(), 1, THREADS, out, x)
    np.testing.assert_array_equal(out, x[::-1])
    assert make_words().resources("sm_80").count("LD.E") == 0  # not a generic load


@functools.cache
def make_bulk(rounds: int):
    """`rounds` chunks of 1 KiB through one buffer; two barriers, full and empty, as in a ring of one stage."""

    @gpu_kernel("test_bulk", types.void(types.CPointer(U32), types.CPointer(U32)), (rounds,), threads=THREADS)
    def bulk(out, x):
        tile = shared_array(256, U32, alignment=128)
        bars = shared_array(2, types.uint64)
        full, empty = shared_address(bars, 0), shared_address(bars, 1)
        i = thread_index()
        if i == 0:
            mbarrier_init(full, 1)
            mbarrier_init(empty, THREADS)
            fence_async()
        barrier()
        for turn in range(rounds):
            if i == 0:
                mbarrier_wait(empty, U32((turn & 1) ^ 1))  # the first passes at once
                mbarrier_expect(full, 1024)
                bulk_copy(shared_address(tile, 0), x, 256 * turn, 1024, full)
            mbarrier_wait(full, U32(turn & 1))
            for w in range(i, 256, THREADS):
                out[256 * turn + w] = tile[255 - w]
            mbarrier_arrive(empty)

    return bulk


def test_bulk_copies_in_phases():
    x = np.random.default_rng(4).integers(0, 2**32, 5 * 256, np.uint32)
    out = np.zeros_like(x)
    launch(make_bulk(5), 1, THREADS, out, x, arch="sm_90a")
    np.testing.assert_array_equal(out.reshape(5, 256), x.reshape(5, 256)[:, ::-1])
    assert make_bulk(5).resources("sm_90a").has("UBLKCP", "SYNCS")


@functools.cache
def make_tensor(rows: int):
    """The box of `rows` x 64 at (row, column) of a matrix of 16-bit elements."""
    halves, size = 64 * rows, 128 * rows
    signature = types.void(types.CPointer(types.uint16), types.uint64, I32, I32)

    @gpu_kernel("test_tensor", signature, (rows,), threads=THREADS)
    def tensor(out, tensor_map, row, column):
        tile = shared_array(halves, types.uint16, alignment=1024)
        bars = shared_array(1, types.uint64)
        full = shared_address(bars, 0)
        i = thread_index()
        if i == 0:
            mbarrier_init(full, 1)
            fence_async()
        barrier()
        if i == 0:
            mbarrier_expect(full, size)
            tensor_copy(shared_address(tile, 0), tensor_map, (column, row), full)
        mbarrier_wait(full, 0)
        for e in range(i, halves, THREADS):
            out[e] = tile[e]

    return tensor


@pytest.mark.parametrize("row, column", [(0, 0), (-3, 8), (30, 60), (100, 0)])
def test_tensor_copy_swizzles_and_fills_with_zeros(row: int, column: int):
    x = np.random.default_rng(5).integers(1, 2**16, (37, 80), np.uint16)
    rows = 16
    with driver.use(EmulatedDriver()) as _:
        gpu = driver.current()
        source, result = gpu.alloc(x.nbytes, 0), gpu.alloc(rows * 128, 0)
        gpu.copy(source, x, x.nbytes, 0)
        encoded = tensor_map.encode(source, 2, (80, 37), (160,), (64, rows), 128)
        address = gpu.alloc(128, 0)
        gpu.copy(address, np.ascontiguousarray(encoded), 128, 0)
        make_tensor(rows).launch(1, (result, address, row, column))
        out = np.zeros((rows, 64), np.uint16)
        gpu.copy(out, result, out.nbytes, 0)
    padded = np.zeros((400, 400), np.uint16)
    padded[100:137, 100:180] = x
    box = padded[100 + row :, 100 + column :][:rows, :64].reshape(rows, 8, 8)
    swizzled = np.array([box[r][np.arange(8) ^ (r & 7)] for r in range(rows)]).reshape(rows, 64)
    np.testing.assert_array_equal(out, swizzled)
    assert make_tensor(rows).resources("sm_90a").has("UTMALDG.2D")
