"""gpu/device/warp.py and block.py: shuffles, votes, reductions against NumPy, in the emulator."""

import functools

import numpy as np
import pytest
from ptx_emulator import DataRace, EmulatorError, launch

from numbaprims.gpu.device.block import barrier, block_max, block_min, block_sum
from numbaprims.gpu.device.warp import (
    ballot,
    group_reduce,
    lane_index,
    maximum,
    minimum,
    shuffle,
    shuffle_down,
    shuffle_up,
    shuffle_xor,
    uniform,
    warp_all,
    warp_any,
    warp_index,
    warp_max,
    warp_min,
    warp_sum,
)  # fmt: skip
from numbaprims.gpu.jit import gpu_kernel, shared_array, thread_index, types

ARCHS = ("sm_80", "sm_90a")
TYPES = {np.float32: types.float32, np.float64: types.float64, np.int32: types.int32, np.uint32: types.uint32}
U32 = types.uint32
THREADS = 128


@functools.cache
def make_shuffles(dtype):
    T = TYPES[dtype]

    @gpu_kernel("test_shuffles", types.void(*[types.CPointer(T)] * 2), (str(T),), threads=THREADS, registers=40)
    def shuffles(out, x):
        i = thread_index()
        lane = lane_index()
        value = x[i]
        out[i] = shuffle(value, U32((lane + U32(5)) & U32(31)))
        out[U32(i + U32(128))] = shuffle_xor(value, 3)
        out[U32(i + U32(256))] = shuffle_up(value, 2)
        out[U32(i + U32(384))] = shuffle_down(value, 7)
        out[U32(i + U32(512))] = uniform(value)

    return shuffles


@pytest.mark.parametrize("dtype", TYPES)
def test_shuffles(dtype):
    x = np.random.default_rng(0).integers(0, 2**31, THREADS).astype(dtype) + dtype(3)
    out = np.zeros(5 * THREADS, dtype)
    launch(make_shuffles(dtype), 1, THREADS, out, x, uninitialised=(0,))
    rows, lanes = x.reshape(-1, 32), np.arange(32)
    expected = [
        rows[:, (lanes + 5) % 32], rows[:, lanes ^ 3], rows[:, np.maximum(lanes - 2, np.where(lanes < 2, lanes, 0))],
        rows[:, np.where(lanes + 7 < 32, lanes + 7, lanes)], rows[:, lanes * 0],
    ]  # fmt: skip
    np.testing.assert_array_equal(out.reshape(5, -1, 32), np.array(expected))


@functools.cache
def make_votes():
    P = types.CPointer(U32)

    @gpu_kernel("test_votes", types.void(P, P), (), threads=THREADS, registers=32)
    def votes(out, x):
        i = thread_index()
        holds = x[i] != U32(0)
        out[i] = ballot(holds)
        out[U32(i + U32(128))] = U32(warp_any(holds)) + U32(2) * U32(warp_all(holds)) + U32(4) * warp_index()

    return votes


def test_votes():
    x = np.zeros((4, 32), np.uint32)
    x[1, 7], x[2] = 1, 1
    x[3, ::3] = 9
    out = np.zeros(2 * THREADS, np.uint32)
    launch(make_votes(), 1, THREADS, out, x.ravel())
    bits = ((x != 0).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1)
    np.testing.assert_array_equal(out[:128].reshape(4, 32), np.repeat(bits[:, None], 32, 1))
    np.testing.assert_array_equal(out[128:].reshape(4, 32)[:, 0], [0, 1 + 4, 3 + 8, 1 + 12])


@functools.cache
def make_reductions(dtype, warps: int):
    T, threads = TYPES[dtype], 32 * warps

    @gpu_kernel("test_reductions", types.void(*[types.CPointer(T)] * 2), (str(T), warps), threads=threads)
    def reductions(out, x):
        scratch = shared_array(warps, T)
        i = thread_index()
        value = x[i]
        out[i] = warp_sum(value)
        out[U32(i + U32(threads))] = warp_max(value)
        out[U32(i + U32(2 * threads))] = warp_min(value)
        out[U32(i + U32(3 * threads))] = group_reduce(value, 8, "sum")
        # one after another over the same memory: the barrier at the end of each is what makes that right
        out[U32(i + U32(4 * threads))] = block_sum(value, scratch, warps)
        out[U32(i + U32(5 * threads))] = block_max(value, scratch, warps)
        out[U32(i + U32(6 * threads))] = block_min(value, scratch, warps)

    return reductions


def butterfly(x: np.ndarray) -> np.ndarray:
    """Sums over the last axis in the kernel's order."""
    width = x.shape[-1]
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width : 2 * width]
    return x


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("warps", [1, 4, 32])
def test_reductions(dtype, warps: int):
    threads = 32 * warps
    rng = np.random.default_rng(warps)
    x = (rng.standard_normal(threads) if dtype in (np.float32, np.float64) else rng.integers(0, 2**31, threads)).astype(
        dtype
    )
    out = np.zeros((7, threads), dtype)
    launch(make_reductions(dtype, warps), 1, threads, out.reshape(-1), x, uninitialised=(0,), order="random", seed=3)
    rows = x.reshape(warps, 32)
    sums = butterfly(rows)
    expected = [
        np.repeat(sums, 32, 1), np.repeat(rows.max(1)[:, None], 32, 1), np.repeat(rows.min(1)[:, None], 32, 1),
        np.repeat(butterfly(x.reshape(-1, 8)), 8, 1).reshape(warps, 32), *(
            np.full((warps, 32), value) for value in (butterfly(sums.ravel())[0], x.max(), x.min())
        ),
    ]  # fmt: skip
    np.testing.assert_array_equal(out.reshape(7, warps, 32), np.array(expected, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maximum_and_minimum_hand_nan_on(dtype):
    x = np.random.default_rng(5).standard_normal((4, 32)).astype(dtype)
    x[1, 13], x[2, 0], x[3, 31] = np.nan, np.inf, -np.inf
    out = np.zeros((7, 4, 32), dtype)
    launch(make_reductions(dtype, 4), 1, THREADS, out.reshape(-1), x.reshape(-1))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out[1][:, 0], x.max(1))
        np.testing.assert_array_equal(out[2][:, 0], x.min(1))
    assert np.isnan(out[4:]).all() and np.isnan(out[1][1]).all() and not np.isnan(out[1][[0, 2, 3]]).any()


@functools.cache
def make_extremes(dtype):
    T = TYPES[dtype]

    @gpu_kernel("test_extremes", types.void(*[types.CPointer(T)] * 4), (str(T),), threads=THREADS, registers=32)
    def extremes(high, low, x, y):
        i = thread_index()
        high[i] = maximum(x[i], y[i])
        low[i] = minimum(x[i], y[i])

    return extremes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extremes_are_numpys(dtype):
    hard = np.array([0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-40, -3.5], dtype)
    x, y = (part.ravel().repeat(2) for part in np.meshgrid(hard, hard))
    high, low = np.zeros(THREADS, dtype), np.zeros(THREADS, dtype)
    launch(make_extremes(dtype), 1, THREADS, high, low, x, y)
    np.testing.assert_array_equal(high, np.maximum(x, y))
    np.testing.assert_array_equal(low, np.minimum(x, y))


@pytest.mark.parametrize("arch", ARCHS)
def test_reductions_stay_in_registers(arch: str):
    used = make_reductions(np.float32, 4).resources(arch)
    assert used.spills == used.stack == 0
    if used.opcodes:
        assert used.has("SHFL.BFLY", "BAR.SYNC") and not used.has("LDL") and not used.has("F2F.F64.F32")
        assert used.has("FMNMX")
    assert make_reductions(np.int32, 4).resources(arch).has("REDUX")


@functools.cache
def make_unguarded(drop: str):
    """A block sum of our own with a barrier left out; or a shuffle where half of the warp is missing."""

    @gpu_kernel("test_unguarded", types.void(*[types.CPointer(types.float32)] * 2), (drop,), threads=64)
    def unguarded(out, x):
        scratch = shared_array(2, types.float32)
        i = thread_index()
        value = x[i]
        if drop == "lanes":
            if i & U32(1):
                out[i] = warp_sum(value)
        else:
            total = warp_sum(value)
            if lane_index() == 0:
                scratch[warp_index()] = total
            if drop != "barrier":
                barrier()
            out[i] = scratch[0] + scratch[1]

    return unguarded


def test_mistakes_are_found():
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    launch(make_unguarded(""), 1, 64, out, x)
    np.testing.assert_array_equal(out, 64)
    with pytest.raises(EmulatorError) as caught:
        launch(make_unguarded("barrier"), 1, 64, out, x)
    assert isinstance(caught.value, DataRace) or "uninitialised" in str(caught.value)
    with pytest.raises(EmulatorError):
        launch(make_unguarded("lanes"), 1, 64, out, x)
