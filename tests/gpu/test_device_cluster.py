"""gpu/device/cluster.py: blocks that write into one another's shared memory; in the emulator, with its checks."""

import functools

import numpy as np
import pytest
from ptx_emulator import EmulatorError, launch
from ptx_emulator.launch import Tiled

from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.cluster import cluster_barrier, cluster_rank, mbarrier_arrive_at, tensor_multicast
from numbaprims.gpu.device.copy import fence_async, mbarrier_expect, mbarrier_init, mbarrier_wait, shared_address
from numbaprims.gpu.jit import block_index, gpu_kernel, shared_array, thread_index, types

I32, U32 = types.int32, types.uint32
ROWS, COLUMNS = 16, 32


@functools.cache
def make_exchange(mistake: str = ""):
    """Each of two blocks copies half of 16 x 32 words into both; both wait until both have all, and write it."""
    WORDS = ROWS * COLUMNS
    HALF = WORDS // 2
    MET, EVERYBODY = mistake != "meeting", 1 if mistake == "alone" else 3
    EXPECTED = 4 * HALF if mistake == "half" else 4 * WORDS

    @gpu_kernel(
        "test_cluster", types.void(types.CPointer(U32), types.uint64), (mistake,), threads=64, shared=4 * WORDS + 16,
        cluster=2,
    )  # fmt: skip
    def exchange(out, tensor_map):
        tile = shared_array(0, U32, alignment=1024)
        thread, rank = thread_index(), cluster_rank()
        memory = shared_address(tile, 0)
        full, done = shared_address(tile, WORDS), shared_address(tile, WORDS + 2)
        if thread == 0:
            mbarrier_init(full, 1)
            mbarrier_init(done, 2)
            fence_async()
        if MET:
            cluster_barrier()
        else:
            barrier()
        if thread == 0:
            mbarrier_expect(full, EXPECTED)
            target = U32(memory + U32(4 * HALF) * rank)
            tensor_multicast(target, tensor_map, (I32(0), I32(I32(rank) * I32(ROWS // 2))), full, EVERYBODY)
        mbarrier_wait(full, 0)
        if thread < 2:
            mbarrier_arrive_at(done, thread)
        mbarrier_wait(done, 0)
        for i in range(thread, WORDS, 64):
            out[U32(block_index() * U32(WORDS) + U32(i))] = tile[i]
        cluster_barrier()

    return exchange


def exchange(mistake: str = "", order: str = "lowest") -> np.ndarray:
    x = np.arange(ROWS * COLUMNS, dtype=np.uint32).reshape(ROWS, COLUMNS)
    out = np.zeros((4, ROWS, COLUMNS), np.uint32)
    launch(make_exchange(mistake), 4, 64, out, Tiled(x, (ROWS // 2, COLUMNS)), arch="sm_90a", order=order)
    return out


@pytest.mark.parametrize("order", ["lowest", "random"])
def test_multicast(order):
    for block in exchange(order=order):
        np.testing.assert_array_equal(block, np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS))
    assert make_exchange().resources("sm_90a").spills == 0


@pytest.mark.parametrize("mistake", ["meeting", "alone", "half"])
def test_mistakes(mistake):
    """No meeting before the first copy, copies that one block lacks, fewer bytes expected than come."""
    with pytest.raises(EmulatorError):
        exchange(mistake)


def test_a_grid_is_whole_clusters():
    with pytest.raises(ValueError, match="clusters of 2"):
        launch(make_exchange(), 3, 64, np.zeros(8, np.uint32), 0, arch="sm_90a")
