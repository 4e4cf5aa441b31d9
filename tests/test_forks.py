"""Forks while other threads of the parent hold locks: the child computes."""

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from importlib import _bootstrap

import pytest

from numbaprims import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def of_child(work) -> bool:
    """Whether `work` says yes in a forked child, in time."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of Python 3.12 on, of threads
        child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, [2]).start()
        os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0


def free(one) -> bool:
    """Whether another thread gets the lock."""
    found = []

    def take():
        found.append(one.acquire(timeout=0.5))
        found[0] and one.release()

    thread = threading.Thread(target=take)
    thread.start(), thread.join()
    return found[0]


def test_a_lock_of_another_thread_is_free_in_a_child_and_ones_own_is_not():
    theirs, mine, inside, leave = forks.lock(), forks.lock(), threading.Event(), threading.Event()

    def hold():
        with theirs:
            inside.set(), leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start(), inside.wait(60)
    with mine, mine:
        assert of_child(lambda: free(theirs) and not free(mine))
    assert of_child(lambda: free(mine))
    leave.set(), thread.join()


def test_a_fork_waits_and_one_inside_does_not():
    one, inside, leave = threading.RLock(), threading.Event(), threading.Event()
    forks.wait_for(one)
    forks.wait_for(one)
    with one:
        assert of_child(lambda: one._is_owned() and not free(one))
        assert one._is_owned() and not free(one)

    def hold():
        with one:
            inside.set(), leave.wait(0.3)
            leave.set()

    thread = threading.Thread(target=hold)
    thread.start(), inside.wait(60)
    assert of_child(lambda: leave.is_set() and free(one))
    thread.join()
    assert free(one)


def test_a_fork_waits_for_an_import_of_another_thread():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with _bootstrap._ModuleLockManager("numbaprims.slow"):
            inside.set(), leave.wait(0.3)
            leave.set()

    thread = threading.Thread(target=hold)
    thread.start(), inside.wait(60)
    assert of_child(leave.is_set)
    thread.join()


@pytest.mark.parametrize("at", ["the compiler", "a file"])
def test_a_child_of_a_parent_that_compiles_has_its_own_kernels(at, tmp_path):
    code = """
        import os, sys, threading, time
        import numpy as np, numbaprims
        from numbaprims import kernel_cache, kernel_files

        x, inside = np.ones((3, 3), np.float32), threading.Event()
        numbaprims.relu(x)
        real = kernel_files.Lock.acquire

        def slow(lock):
            inside.set(), time.sleep(0.3)
            return real(lock)

        def hold():
            if sys.argv[1] == "the compiler":
                with kernel_cache.compiler_lock():
                    inside.set(), time.sleep(0.3)
            else:
                kernel_files.Lock.acquire = slow
                numbaprims.tanh(x)

        thread = threading.Thread(target=hold, daemon=True)
        thread.start(), inside.wait(60)
        child = os.fork()
        if child == 0:
            kernel_files.Lock.acquire = real
            threading.Timer(60, os._exit, [2]).start()
            os._exit(0 if (numbaprims.abs(-x) == 1).all() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    words = [sys.executable, "-c", textwrap.dedent(code), at]
    here = {**os.environ, "NUMBAPRIMS_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(words, env=here, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "0", done.stderr
