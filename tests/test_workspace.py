"""Scratch memory: shared by nobody, kept between calls, capped."""

import gc
import threading

import numpy as np
import pytest

from numbaprims import settings, workspace


@pytest.fixture(autouse=True)
def fresh():
    old = settings._default
    workspace.release()
    yield
    workspace.release()
    settings._default = old


def address(memory: np.ndarray) -> int:
    return memory.ctypes.data


@pytest.mark.parametrize("nbytes", [0, 1, 64, 4095, 4096, 4097, 100_000, (4 << 20) - 1, 4 << 20, 5_000_001])
def test_size_and_alignment(nbytes):
    with workspace.borrow(nbytes) as memory:
        assert memory.dtype == np.uint8 and memory.ndim == 1 and memory.nbytes >= nbytes
        assert memory.flags.c_contiguous and memory.flags.writeable
        if nbytes:
            assert address(memory) % 4096 == 0
        if nbytes >= 4 << 20:
            assert address(memory) % (2 << 20) == 0, "huge pages could not serve it"
        memory[:] = 7


def test_memory_is_used_again():
    with workspace.borrow(10_000) as memory:
        first, size = address(memory), memory.nbytes
    for smaller in (1, 5_000, size):
        with workspace.borrow(smaller) as memory:
            assert address(memory) == first
    assert workspace.held() == size
    assert address(workspace.get(100)) == first


def test_it_grows_and_does_not_shrink():
    sizes = []
    for n in range(1, 200):
        with workspace.borrow(n * 10_000) as memory:
            sizes.append(memory.nbytes)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 25, "it allocates at every step"
    assert workspace.held() == sizes[-1] < 1.6 * 1_990_000


def test_nested_borrowers_share_nothing():
    with workspace.borrow(5000) as a, workspace.borrow(5000) as b:
        with workspace.borrow(50) as c:
            assert workspace.get(60) is not c
            for value, memory in enumerate((a, b, c), 1):
                memory[:] = value
            assert (a == 1).all() and (b == 2).all() and (c == 3).all()
            assert not any(np.shares_memory(x, y) for x, y in ((a, b), (b, c), (a, c)))
    with workspace.borrow(5000) as again:
        assert address(again) in (address(a), address(b))


def test_memory_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError):
        with workspace.borrow(1000) as memory:
            raise ZeroDivisionError
    with workspace.borrow(1000) as again:
        assert address(again) == address(memory)


def test_a_block_is_entered_once():
    block = workspace.borrow(1000)
    with block:
        with pytest.raises(RuntimeError, match="twice"):
            block.__enter__()
    with pytest.raises(RuntimeError, match="twice"):
        block.__enter__()


def test_block_that_is_never_entered_is_not_lent_twice():
    forgotten = workspace.borrow(1000)
    with workspace.borrow(1000) as memory, forgotten as other:
        assert not np.shares_memory(memory, other)


def test_threads_share_nothing():
    start = threading.Barrier(8)
    wrong = []

    def work(value):
        start.wait()
        for n in range(300):
            with workspace.borrow(2000 + 37 * n) as memory:
                memory[:2000] = value
                with workspace.borrow(1000) as inner:
                    inner[:] = 255
                if (memory[:2000] != value).any():
                    wrong.append(value)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [w.start() for w in workers], [w.join() for w in workers]
    assert wrong == []


def test_what_exceeds_the_cap_is_not_kept():
    settings.set_defaults(workspace_limit=100_000)
    with workspace.borrow(50_000) as memory:
        first = address(memory)
        kept = workspace.held()
        with workspace.borrow(200_000) as big:
            assert big.nbytes >= 200_000
        assert workspace.held() == kept
    assert workspace.get(200_000).nbytes >= 200_000
    assert workspace.held() <= 100_000
    with workspace.borrow(40_000) as memory:
        assert memory.nbytes >= 40_000 and first
    assert workspace.held() <= 100_000
    settings.set_defaults(workspace_limit=0)
    workspace.release()
    with workspace.borrow(10) as memory:
        memory[:10] = 1
    assert workspace.held() == 0


def test_release_gives_memory_back():
    with workspace.borrow(1 << 20) as lent:
        workspace.get(1 << 20)
        assert workspace.held() >= 2 << 20
        workspace.release()
        assert workspace.held() == lent.nbytes
        lent[:] = 1
    workspace.release()
    assert workspace.held() == 0


def test_memory_of_a_thread_that_ended_is_freed():
    freed = threading.Event()

    def work():
        import weakref

        with workspace.borrow(1 << 20) as memory:
            weakref.finalize(memory.base, freed.set)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    gc.collect()
    assert freed.is_set()


def test_a_call_that_repeats_allocates_nothing():
    import tracemalloc

    def call():
        with workspace.borrow(3 << 20) as memory:
            memory[0] = 1

    call()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(100):
            call()
        assert tracemalloc.get_traced_memory()[1] - before < 4096
    finally:
        tracemalloc.stop()
