"""Memory of large results: kept when nobody has it any more, for the next ones, and never before."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import has_module

import numbaprims
from numbaprims.libraries import KEPT, LARGE, Lease, aligned_empty

pytestmark = pytest.mark.cpu
SIZE = LARGE // 4 + 100


@pytest.fixture(autouse=True)
def nothing_kept():
    before = dict(Lease.kept)
    Lease.kept.clear()
    yield
    Lease.kept.clear()
    Lease.kept.update(before)


def test_memory_comes_back_when_the_last_array_over_it_is_gone():
    first = aligned_empty((1000, 500), np.float32)
    place = first.ctypes.data
    assert place % 64 == 0 and first.flags.writeable and first.flags.c_contiguous
    part = first[3:, ::2].T
    del first
    second = aligned_empty((1000, 500), np.float32)
    assert second.ctypes.data != place and not Lease.kept, "somebody has a part of it"
    part[:] = 7.0
    second[:] = 1.0
    assert (part == 7.0).all()
    del part
    assert len(Lease.kept) == 1
    smaller = aligned_empty((999, 500), np.float32)
    assert smaller.ctypes.data == place and not Lease.kept
    del smaller
    few = aligned_empty((10, 500), np.float32)
    assert few.ctypes.data != place and len(Lease.kept) == 1, "much larger memory waits for a larger result"


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.skipif(
    not has_module("torch"), reason="torch is not installed"))])  # fmt: skip
def test_results_have_memory_of_their_own_while_they_live(library):
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    if library == "torch":
        import torch

        x = torch.from_numpy(x)
    held = [numbaprims.relu(x), numbaprims.scale(x, 2.0)]
    places = {np.asarray(each).ctypes.data for each in held}
    want = [np.asarray(each).copy() for each in held]
    for _ in range(3):
        last = numbaprims.scale(x, 3.0)
        assert np.asarray(last).ctypes.data not in places
    for each, before in zip(held, want, strict=True):
        np.testing.assert_array_equal(np.asarray(each), before)
    del last, each
    kept = [range(raw.ctypes.data, raw.ctypes.data + raw.nbytes) for raw in Lease.kept.values()]
    again = numbaprims.relu(x)
    assert any(np.asarray(again).ctypes.data in memory for memory in kept), "what is kept serves the next result"
    np.testing.assert_array_equal(np.asarray(again), want[0])


def test_no_more_is_kept_than_allowed():
    large = [aligned_empty((KEPT // 4,), np.uint8) for _ in range(6)]
    places = [each.ctypes.data for each in large]
    while large:
        large.pop(0)
        assert sum(each.nbytes for each in Lease.kept.values()) <= KEPT
    assert len(Lease.kept) == 3 and aligned_empty((KEPT // 4,), np.uint8).ctypes.data in places[3:], "the oldest goes"
    del large
    Lease.kept.clear()
    aligned_empty((KEPT + 1,), np.uint8)
    assert not Lease.kept


def test_threads_never_have_the_same_memory():
    wrong = []

    def work(number):
        for turn in range(300):
            held = [aligned_empty((2000 + 100 * (turn % 3),), np.int64) for _ in range(3)]
            for at, each in enumerate(held):
                each[:] = 10 * number + at
            for at, each in enumerate(held):
                if (each != 10 * number + at).any():
                    wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sum(each.nbytes for each in Lease.kept.values()) <= KEPT


def test_a_process_that_ends_says_nothing_and_a_fork_has_its_own():
    code = (
        "import os, numpy as np, numbaprims\n"
        "from numbaprims.libraries import Lease\n"
        "x = np.ones(5 << 20, np.float32)\n"
        "y = numbaprims.relu(x); z = numbaprims.relu(x); del y\n"
        "if hasattr(os, 'fork'):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        w = numbaprims.libraries.aligned_empty((5 << 20,), np.float32); w[:] = 5\n"
        "        os._exit(0 if (z == 1).all() else 1)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "assert (z == 1).all() and len(Lease.kept) == 1\n"
    )
    # from 3.12 on Python warns of a fork beside other threads, such as those of a kernel's first call
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr
