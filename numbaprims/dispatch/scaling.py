"""Plans over many batches: on an executor of concurrent.futures, in dask arrays; and the CPUs of each worker.

A worker process gets the plan once, under a digest of its pickle, and keeps it: weights are packed once for each
process. The settings of the caller go with each batch.
"""

from __future__ import annotations

import collections
import concurrent.futures
import hashlib
import importlib
import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from numbaprims import forks, settings

PLANS = 16
"""That a worker process keeps; the one unused for longest goes first."""
AHEAD = 32
"""Batches that wait on an executor of unknown size."""

# What goes with a batch: all that a call's result or its solver follows from, and the number of threads.
_SETTINGS = (
    "threads", "deterministic", "algorithm", "device", "allow_tf32", "accuracy", "find_mode", "database",
    "solver_workspace",
)  # fmt: skip

_plans: collections.OrderedDict[str, Callable[[Any], Any]] = collections.OrderedDict()
_lock = forks.lock()


def share_cpus(workers: int) -> None:
    """Let this process use one part in `workers` of its CPUs: it is one of so many workers.

    Plans do it by themselves on the processes of `plan.map(batches, executor)`; it is for processes that call the
    library in other ways. ``config(threads=...)`` and ``NUMBAPRIMS_THREADS`` go before it. No result depends on it.

    Args:
        workers: processes that run at the same time on this machine, 1 for no limit.

    Raises:
        TypeError, ValueError: not a whole number from 1.

    Example:
        >>> import numbaprims
        >>> from concurrent.futures import ProcessPoolExecutor
        >>> pool = ProcessPoolExecutor(4, initializer=numbaprims.share_cpus, initargs=(4,))
        >>> pool.shutdown()
    """
    importlib.import_module("numbaprims.cpu.threads").share(workers)


# ---------------------------------------------------------------- over an executor


def check_executor(executor: Any) -> None:
    """TypeError for what is no executor."""
    if not isinstance(executor, concurrent.futures.Executor):
        raise TypeError(f"executor is a {type(executor).__name__}; it must be a concurrent.futures.Executor, or None")


def over_batches(
    plan: Callable[[Any], Any],
    batches: Iterable[Any],
    executor: concurrent.futures.Executor | None = None,
    workers: int | None = None,
) -> Iterator[Any]:
    """Results in the order of the batches; `plan.map` has the description."""
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers is {workers!r}; it must be a whole number from 1, or None")
    if executor is None:
        return map(plan, batches)
    check_executor(executor)
    size = getattr(executor, "_max_workers", None) if workers is None else workers
    ahead = AHEAD if size is None else 2 * size
    now = settings.current()
    wanted = {name: value for name in _SETTINGS if (value := getattr(now, name)) is not None}
    wanted.update(algorithm=dict(now.algorithm), database=now.database or ("off" if now.database == "" else None))
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        # the plan itself: its threads share it, and the CPUs (cpu/threads.py: enter)
        return _in_order(batches, lambda batch: executor.submit(_call, plan, batch, wanted), _value, ahead)
    return _on_processes(plan, batches, executor, size, ahead, wanted)


def _on_processes(
    plan: Any,
    batches: Iterable[Any],
    executor: concurrent.futures.Executor,
    size: int | None,
    ahead: int,
    wanted: dict[str, Any],
) -> Iterator[Any]:
    pickled = pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL)
    token = hashlib.sha256(pickled).hexdigest()
    common = (token, wanted, size, os.getpid())
    client = getattr(executor, "_client", None)
    # dask brings data to its workers by itself; elsewhere the first batches carry the plan, and it is sent again to a
    # worker that got none of them
    everywhere = None if client is None else client.scatter(pickled, broadcast=True)
    numbers = itertools.count()

    def submit(batch: Any) -> Any:
        first = size is None or next(numbers) < size
        sent = everywhere if everywhere is not None else pickled if first else None
        return executor.submit(_call_shipped, sent, batch, *common), batch

    def take(submitted: Any) -> Any:
        future, batch = submitted
        known, result = future.result()
        if not known:
            _, result = executor.submit(_call_shipped, pickled, batch, *common).result()
        return result

    return _in_order(batches, submit, take, ahead)


def _value(future: Any) -> Any:
    return future.result()


def _in_order(
    batches: Iterable[Any], submit: Callable[[Any], Any], take: Callable[[Any], Any], ahead: int
) -> Iterator[Any]:
    """Keep some batches waiting, and give results in order."""
    waiting: collections.deque[Any] = collections.deque()
    left = iter(batches)
    try:
        for batch in left:
            waiting.append(submit(batch))
            if len(waiting) >= ahead:
                yield take(waiting.popleft())
        while waiting:
            yield take(waiting.popleft())
    finally:
        for each in waiting:
            (each[0] if isinstance(each, tuple) else each).cancel()


# ---------------------------------------------------------------- what runs on a worker


def _call(plan: Callable[[Any], Any], batch: Any, wanted: dict[str, Any]) -> Any:
    with settings.config(**wanted):
        return plan(batch)


def _call_shipped(
    pickled: bytes | None, batch: Any, token: str, wanted: dict[str, Any], size: int | None, sender: int
) -> tuple[bool, Any]:
    """(whether the plan is known here, the result)."""
    plan = _kept(token, pickled)
    if plan is None:
        return False, None
    if size is not None and os.getpid() != sender:
        share_cpus(size)
    return True, _call(plan, batch, wanted)


def _kept(token: str, pickled: bytes | None) -> Callable[[Any], Any] | None:
    """The plan of a digest, from this process or from its pickle."""
    with _lock:
        plan = _plans.get(token)
        if plan is not None:
            _plans.move_to_end(token)
        elif pickled is not None:
            plan = _plans[token] = pickle.loads(pickled)
            while len(_plans) > PLANS:
                _plans.popitem(last=False)
    return plan


# ---------------------------------------------------------------- in dask arrays


class _Shipped:
    """A plan that arrives once in a process, however many tasks bring it."""

    def __init__(self, plan: Callable[[Any], Any]) -> None:
        pickled = pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL)
        self._state = (hashlib.sha256(pickled).hexdigest(), pickled)
        self._plan = plan

    def __call__(self, x: Any) -> Any:
        return self._plan(x)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, self._state

    def __dask_tokenize__(self) -> str:
        return self._state[0]


def _arrived(token: str, pickled: bytes) -> _Shipped:
    made = _Shipped.__new__(_Shipped)
    made._state = (token, pickled)
    plan = _kept(token, pickled)
    assert plan is not None
    made._plan = plan
    return made


def is_dask(x: Any) -> bool:
    """Whether x is a dask array."""
    return type(x).__module__.startswith("dask.array") and hasattr(x, "map_blocks")


def over_blocks(plan: Callable[[Any], Any], x: Any, leading: int) -> Any:
    """The dask array of plan(block) for the blocks of x, which may be cut along its first `leading` dimensions.

    Raises:
        ValueError: it is cut along another dimension, or its lengths there are unknown.
    """
    for axis in range(leading, x.ndim):
        if len(x.chunks[axis]) != 1 or np.isnan(x.shape[axis]):
            raise ValueError(
                f"x is cut into {x.numblocks[axis]} chunks along dimension {axis}; a plan needs it whole: "
                f"x.rechunk({{{axis}: -1}})"
            )
    none = np.empty_like(x._meta, shape=(0,) * leading + x.shape[leading:])
    probe = plan(none)  # computes nothing, and has the shape and the type of what comes
    chunks = (*x.chunks[:leading], *((length,) for length in probe.shape[leading:]))
    return x.map_blocks(_Shipped(plan), chunks=chunks, dtype=probe.dtype, meta=probe[(slice(0, 0),) * probe.ndim])
