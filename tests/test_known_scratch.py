"""Known calls whose programs need scratch memory: native code runs them too, in a block that one call has at a time."""

import concurrent.futures
import ctypes
import os

import numpy as np
import pytest
from helpers import KNOWN

import numbaprims
from numbaprims import settings, workspace
from numbaprims.cpu import threads
from numbaprims.cpu.known_words import NEW, STACK_WORDS
from numbaprims.dispatch import call as call_module, fast_path

#: A solver that every CPU has, of which convolutions need scratch memory.
IM2COL = {"conv": "im2col_gemm"}
LIMIT = settings.current().workspace_limit


@pytest.fixture(autouse=True)
def fresh():
    call_module.forget()
    fast_path.arm()  # else it learns two calls after the first of a process
    yield
    settings.set_defaults(workspace_limit=LIMIT)  # settings too are looked at by native code
    assert not threads._shared[threads.IN_USE]


@pytest.fixture
def borrowed(monkeypatch):
    """The sizes of the scratch memory that Python's launchers take."""
    sizes, borrow = [], workspace.borrow
    monkeypatch.setattr(workspace, "borrow", lambda nbytes: sizes.append(nbytes) or borrow(nbytes))
    return sizes


def calls(seed=0, library=np.asarray):
    """Calls that need more than is on the stack: one that Python hands to native code, one that enters no Python."""
    rng = np.random.default_rng(seed)
    rows = library(rng.standard_normal((4, 8192)).astype(np.float32))
    images, filters = (library(rng.standard_normal(n).astype(np.float32)) for n in ((2, 32, 28, 28), (32, 32, 3, 3)))
    return (
        lambda: numbaprims.topk(rows, 2000),
        lambda: (numbaprims.conv(images, filters, padding=1),),
    )


def taken(call):
    """What a call gives while another has the block."""
    threads._shared[threads.IN_USE] = 1
    try:
        return call()
    finally:
        threads._shared[threads.IN_USE] = 0


def same(found, wanted):
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("tensors", [False, True])
def test_both_roads_give_the_same_bits(workers, tensors, borrowed):
    library = pytest.importorskip("torch").from_numpy if tensors else np.asarray
    with numbaprims.config(threads=workers, algorithm=IM2COL):
        for call in calls(library=library):
            for _ in range(KNOWN):
                first = call()
            if workers > 1 and not threads._shared[threads._READY]:
                pytest.skip("native code starts no threads here")
            borrowed.clear()
            natively = call()
            assert not borrowed
            in_python = taken(call)
            assert borrowed and borrowed[0] > workspace.PAGE
            assert same(natively, first) and same(in_python, first) and same(call(), first)


@pytest.mark.parametrize("tensors", [False, True])
def test_workers_whose_scratch_memory_is_on_the_stack(tensors, borrowed):
    """It lies where the words of tensors were, which the driver has read by then."""
    library = pytest.importorskip("torch").from_numpy if tensors else np.asarray
    columns = library(np.random.default_rng(0).standard_normal((5, 200000)).astype(np.float32)).T
    with numbaprims.config(threads=2):
        for _ in range(KNOWN):
            want = numbaprims.softmax(columns, axis=1)
        assert borrowed[0] <= 8 * STACK_WORDS
        if not threads._shared[threads._READY]:
            pytest.skip("native code starts no threads here")
        borrowed.clear()
        for _ in range(20):
            assert same((numbaprims.softmax(columns, axis=1),), (want,))
        assert not borrowed


def test_calls_of_several_threads_at_once(borrowed):
    """Whoever finds the block taken goes the way through Python."""
    with numbaprims.config(threads=1, algorithm=IM2COL):
        every = [calls(seed) for seed in range(3)]
        wanted = [[call() for call in each] for each in every]
        for call in (call for each in every for call in each * KNOWN):
            call()

    def work(seed):
        with numbaprims.config(threads=1, algorithm=IM2COL):
            for k in range(150):
                if not same(every[seed][k % 2](), wanted[seed][k % 2]):
                    return False
        return True

    borrowed.clear()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))
    assert len(borrowed) < 3 * 150, "native code ran none"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_has_the_block_that_another_thread_had_at_the_fork(borrowed):
    with numbaprims.config(threads=1):
        call = calls()[0]
        for _ in range(KNOWN):
            want = call()
        borrowed.clear()
        threads._shared[threads.IN_USE] = 1
        child = os.fork()
        if child == 0:
            os._exit(0 if same(call(), want) and not borrowed else 1)
        threads._shared[threads.IN_USE] = 0
        assert os.waitpid(child, 0)[1] == 0


def test_what_needs_more_is_left_to_python(borrowed):
    with numbaprims.config(threads=1):
        large = np.random.default_rng(0).standard_normal((1, 1 << 18)).astype(np.float32)
        for _ in range(KNOWN):
            numbaprims.topk(large, 2000)
        assert borrowed[-1] > workspace.NATIVE
        borrowed.clear()
        numbaprims.topk(large, 2000)
        assert borrowed


def test_the_limit_of_what_is_kept_holds(borrowed):
    settings.set_defaults(workspace_limit=1 << 15)
    with numbaprims.config(threads=1):
        call = calls()[0]
        for _ in range(KNOWN):
            call()
        borrowed.clear()
        call()
        assert borrowed and borrowed[0] > 1 << 15


def test_no_memory_for_a_result(borrowed):
    with numbaprims.config(threads=1, algorithm=IM2COL):
        call = calls()[1]
        for _ in range(KNOWN):
            want = call()
        (pattern,) = fast_path.memo_of(numbaprims.conv)._patterns.values()
        words = pattern._table.words
        before = int(words[NEW])
        words[NEW] = ctypes.cast(ctypes.pythonapi.PyErr_NoMemory, ctypes.c_void_p).value
        try:
            with pytest.raises(MemoryError):
                call()
        finally:
            words[NEW] = before
        borrowed.clear()
        assert same(call(), want) and not borrowed
