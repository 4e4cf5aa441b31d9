"""Threads: how many, through which of Numba's threading layers, and when not to use them.

The only module that knows the layers (omp, tbb, workqueue), forks and CPU quotas. Measured facts behind it:

- An empty parallel region costs 0.7 us under omp and 41 us under workqueue, so omp is preferred.
- GNU OpenMP ends a forked child at its first parallel region; `parallel_allowed` is False there.
- Under workqueue two Python threads in parallel regions at once abort the process; `region_lock` keeps them
  apart.
- Numba counts the CPUs of the affinity mask, but not the quota of a container.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from numbaprims import kernel_cache, settings

__all__ = [
    "count", "default_threads", "enter", "initialise", "layer", "leave", "parallel_allowed", "region_lock", "share",
]  # fmt: skip

PREFERENCE = ("omp", "tbb", "workqueue")
_NUMBA_PREFERENCE = ["tbb", "omp", "workqueue"]  # Numba's own order; anything else is the user's choice

_PROC_CGROUP = "/proc/self/cgroup"
_CGROUP_ROOT = "/sys/fs/cgroup"


# ------------------------------------------------------------------------------------------------- count
def _affinity() -> int:
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _quota_of(quota: str, period: str) -> float:
    try:
        allowed, each = int(quota), int(period)
    except ValueError:  # "max", or no such file
        return math.inf
    return allowed / each if allowed > 0 and each > 0 else math.inf


def cgroup_quota() -> float:
    """CPUs that the control group of this process may use at once; infinite without a quota.

    Both versions count, and every level above the process's own group does: a container's limit is often
    set on its parent. Inside a container the path in /proc/self/cgroup may not exist; its root then is the
    group's own.
    """
    least = math.inf
    for line in _read(_PROC_CGROUP).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":  # version 2
            for folder in _with_parents(_CGROUP_ROOT, path):
                quota, _, period = _read(f"{folder}/cpu.max").partition(" ")
                least = min(least, _quota_of(quota, period or "100000"))
        elif "cpu" in controllers.split(","):  # version 1
            for mount in dict.fromkeys((controllers, "cpu", "cpu,cpuacct")):
                for folder in _with_parents(f"{_CGROUP_ROOT}/{mount}", path):
                    quota = _read(f"{folder}/cpu.cfs_quota_us")
                    least = min(least, _quota_of(quota, _read(f"{folder}/cpu.cfs_period_us")))
    return least


def _with_parents(root: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root + "".join(f"/{part}" for part in parts[:end]) for end in range(len(parts) + 1)]


def _positive(text: str | None) -> int | None:
    # OMP_NUM_THREADS may be a list, one number for each level of nesting; the first is the outermost.
    first = (text or "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _mask_before() -> int:
    # Asking Numba starts its threads, with the layer that it would choose.
    if _started_layer() is None:
        return int(_numba().config.NUMBA_NUM_THREADS)
    initialise()  # a user's `numba.set_num_threads(1)` came first: 4.5 us less for each call that it keeps alone
    return _mask()


# What the user's `numba.set_num_threads` allows in this thread; `initialise` puts a faster function here.
_mask: Callable[[], int] = _mask_before


# Processes that share the CPUs of this one evenly; see `share`.
_workers = 1


def _ceil(quota: float) -> float:
    return max(1.0, math.ceil(quota)) if quota < math.inf else quota


@functools.cache
def _limits() -> tuple[tuple[str, int], ...]:
    """What bounds the number of threads, each with its reason."""
    found = [("affinity", _affinity())]
    quota = cgroup_quota()
    if quota < math.inf:
        found.append(("cgroup quota", int(_ceil(quota))))
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        number = _positive(os.environ.get(name))
        if number is not None:
            found.append((name, number))
    if _workers > 1:
        found.append((f"being one of {_workers} workers", max(1, int(min(_affinity(), _ceil(quota))) // _workers)))
    return tuple(found)


@functools.cache
def default_threads() -> int:
    """Threads of one call where nobody asked for a number: the least of affinity, quota and variables."""
    return min(number for _, number in _limits())


def why_default() -> str:
    """Which of the limits decides `default_threads`, for people."""
    name, number = min(_limits(), key=lambda limit: limit[1])
    return f"{number} by {name}"


def count() -> int:
    """Threads that a call would use now.

    The number in the settings, else the default; never more than Numba started (NUMBA_NUM_THREADS), nor
    than the user's own ``numba.set_num_threads`` allows in this thread.
    """
    wanted = settings.current().threads or default_threads()
    if wanted == 1:
        return 1
    most = _mask()
    return wanted if wanted < most else most


def share(workers: int) -> None:
    """Use one part in `workers` of the CPUs from now on: this process is one of so many.

    It bounds what nobody asked for: a number in the settings still holds.

    Raises:
        ValueError: less than 1.
        TypeError: no integer.
    """
    global _workers
    number = workers.__index__() if hasattr(workers, "__index__") else None
    if number is None:
        raise TypeError(f"workers is {workers!r}; it must be a whole number from 1")
    if number < 1:
        raise ValueError(f"workers is {number}; it must be a whole number from 1")
    if number != _workers:
        _workers = number
        _shared[_READY] = 0  # records have the number of before
        _limits.cache_clear()
        default_threads.cache_clear()


# Python threads that are in a parallel launch, and the workers of each.
_running: dict[int, int] = {}
# What native code shares with `enter`, under Python's lock: whether it may launch by itself; the workers of the launch
# that it runs, 0 for none; how many `_running` has; without that lock whether a call has `workspace.native`. Then the
# addresses of OpenMP's functions that begin a region and that tell a thread's number in it, and of what the region
# runs, 0 in other layers; and of `workspace.native`.
_READY, _NATIVE, _PYTHON, IN_USE, BEGIN, NUMBER, MEMBER, BLOCK = range(8)
_shared = (ctypes.c_int64 * 8)()


def shared_address() -> int:
    """The address of those words."""
    return ctypes.addressof(_shared)


def lend(address: int) -> None:
    """Say where `workspace.native` is, for native code to take."""
    _shared[BLOCK] = address


def enter(workers: int) -> int:
    """Note a parallel launch of this Python thread, up to `leave`; give the workers that it gets.

    Launches at the same time share the CPUs: each Python thread of a pool would otherwise use all of them. A number in
    the settings is given as it is; under workqueue launches take turns, so each gets all it wants. 0.2 us.
    """
    me = threading.get_ident()
    _running[me] = workers
    _shared[_PYTHON] = len(_running)
    if (len(_running) > 1 or _shared[_NATIVE]) and _layer_name != "workqueue" and not settings.current().threads:
        # a copy, since others come and go; at first those that came earlier have more, and give it back at their next
        others = [number for thread, number in list(_running.items()) if thread != me]
        if _shared[_NATIVE]:
            others.append(_shared[_NATIVE])
        most = default_threads()
        workers = max(1, min(workers, most // (len(others) + 1), most - sum(others)))
        _running[me] = workers
    return workers


def begin(most: int) -> int:
    """Workers of a launch, at most so many: 1 where it runs alone; else `leave` is to follow, and 0 stands for one, for
    which others have left no more."""
    workers = min(most, count())
    if workers == 1 or _serial_only:
        return 1
    workers = enter(workers)
    if workers == 1:
        return 0
    if not _initialised:
        try:
            initialise()
        except BaseException:
            leave()
            raise
    return workers


def leave() -> None:
    """The end of a launch that `enter` noted."""
    _running.pop(threading.get_ident(), None)
    _shared[_PYTHON] = len(_running)


# ------------------------------------------------------------------------------------------------- layer
#: What begins a region of OpenMP, and what says which of its threads one is.
_REGION = ("GOMP_parallel", "omp_get_thread_num")
_initialised = False
_serial_only = False
_init_lock = threading.Lock()
_region = threading.RLock()
_layer_name = ""


@functools.cache
def _numba() -> Any:
    import numba

    return numba


def initialise() -> None:
    """Choose the threading layer and start its threads; 0.03 us when that is done.

    Called before a parallel launch, and before a parallel function is compiled or loaded: both start the
    threads too, with the layer that Numba would choose.
    """
    global _initialised, _layer_name, _mask
    if _initialised:
        return
    with _init_lock:
        if _initialised:
            return
        numba = _numba()
        if _started_layer() is None and numba.config.THREADING_LAYER == "default":
            if list(numba.config.THREADING_LAYER_PRIORITY) == _NUMBA_PREFERENCE:
                numba.config.THREADING_LAYER_PRIORITY = list(PREFERENCE)
            if not _has_omp():
                _preload_tbb()
        elif str(numba.config.THREADING_LAYER).lower() in ("tbb", "safe", "threadsafe"):
            _preload_tbb()
        _mask = kernel_cache.thread_mask()  # starts them
        _layer_name = numba.threading_layer()
        _shared[BEGIN], _shared[NUMBER] = _of_openmp() if _layer_name == "omp" else (0, 0)
        _shared[_READY] = int(_layer_name != "workqueue" and not _serial_only and _workers == 1)
        _initialised = True


def _started_layer() -> str | None:
    try:
        return _numba().threading_layer()
    except ValueError:  # none yet
        return None


@functools.cache
def _has_omp() -> bool:
    try:
        import numba.np.ufunc.omppool  # noqa: F401  # needs the system's libgomp
    except ImportError:
        return False
    return True


def _of_openmp() -> tuple[int, int]:
    """The addresses of GOMP_parallel and omp_get_thread_num in the library that torch runs on, if it is imported, or
    Numba's layer, GNU's or one that is called as it is; zeros where it is not.

    torch brings a library of its own, whose threads wait for its next region on CPUs that ours want: a ShuffleNet of
    torch's functions and our convolutions took 112 ms on two threads of two cores, 6.7 by one library (Zen 4).
    """
    if sys.platform != "linux":
        return 0, 0  # not tried
    from numba.np.ufunc import omppool

    linked = [omppool.__file__]
    if torch := sys.modules.get("torch"):
        linked.insert(0, os.path.join(os.path.dirname(str(getattr(torch, "__file__", ""))), "lib", "libtorch_cpu.so"))
    for path in linked:
        try:
            library = ctypes.CDLL(path)  # the names of what it links to, too
            found = [ctypes.cast(library[name], ctypes.c_void_p).value for name in _REGION]
        except (OSError, AttributeError):
            continue
        return found[0] or 0, found[1] or 0
    return 0, 0


def direct() -> bool:
    """Whether regions are begun without Numba; starts the threads."""
    initialise()
    return _shared[BEGIN] != 0


def run_in_regions(member: int) -> None:
    """Say what regions that are begun so run: the address of void(words)."""
    _shared[MEMBER] = member


@functools.cache
def _preload_tbb() -> bool:
    """Load the TBB that `pip install tbb` puts in <prefix>/lib: the loader doesn't look there by itself."""
    import ctypes

    names = {"win32": "Library/bin/tbb12.dll", "darwin": "lib/libtbb.12.dylib"}
    path = os.path.join(sys.prefix, names.get(sys.platform, "lib/libtbb.so.12"))
    if not os.path.exists(path):
        return False
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def layer() -> tuple[str, str]:
    """(name, why) of the threading layer: "omp", "tbb" or "workqueue"; starts it if need be."""
    initialise()
    numba = _numba()
    if numba.config.THREADING_LAYER != "default":
        return _layer_name, f"Numba's setting THREADING_LAYER={numba.config.THREADING_LAYER}"
    if list(numba.config.THREADING_LAYER_PRIORITY) != list(PREFERENCE):
        return _layer_name, "started before numbaprims was used, or by NUMBA_THREADING_LAYER_PRIORITY"
    reasons = {
        "omp": "the fastest to enter; uses the OpenMP library of torch, if that is imported, or the system's",
        "tbb": "no OpenMP library (libgomp) was found, TBB was",
        "workqueue": "neither an OpenMP library (libgomp) nor TBB was found; a region costs about 40 us",
    }
    return _layer_name, reasons[_layer_name]


# ----------------------------------------------------------------------------------------- fork, regions
def parallel_allowed() -> bool:
    """False in a process whose parent had started OpenMP's threads when it forked: it runs serial kernels."""
    return not _serial_only


class _NoLock:
    """A context manager that does nothing: omp and tbb let several Python threads in."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


_no_lock = _NoLock()


def region_lock() -> Any:
    """Context manager to hold around a parallel launch: a lock under workqueue, nothing elsewhere."""
    return _region if _layer_name == "workqueue" else _no_lock


def _after_fork_in_child() -> None:
    global _serial_only, _init_lock, _region
    # Another thread of the parent may have held these; it does not exist here.
    _init_lock = threading.Lock()
    _region = threading.RLock()
    _running.clear()
    _shared[:BEGIN] = [0] * BEGIN
    _limits.cache_clear()  # workers are often pinned to a part of the CPUs after the fork
    default_threads.cache_clear()
    # Also if the user's own code started the threads, which is why Numba is asked, not `_initialised`.
    if "numba" in sys.modules and sys.platform == "linux" and _started_layer() == "omp":
        _serial_only = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
