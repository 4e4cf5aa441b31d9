"""Locks for processes that fork: what another thread holds at that moment, nobody releases in the child."""

from __future__ import annotations

import importlib
import logging  # noqa: F401  forks take its lock, which imports ask for: later than they wait for imports
import os
import threading
import time
import weakref
from typing import Any

__all__ = ["lock", "wait_for"]

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_waited: list[Any] = []
_held: list[Any] = []  # by the thread that forks

#: Packages that first calls import, and how long a fork waits for that at most.
_OURS = {"numbaprims", "numba", "llvmlite", "numpy"}
_SECONDS = 30.0


def lock() -> Any:
    """A re-entrant lock that is free in a forked child, except where the thread that forked holds it."""
    made = threading.RLock()
    _locks.add(made)
    return made


def wait_for(one: Any) -> None:
    """Let forks wait for a re-entrant lock from now on, for those whose holder leaves what no child can use.

    Forks then wait for it before all that waited so far: a fork that has another lock already, which the holder of this
    one asks for, would wait for ever.  Hence call it again after an import of what has forks wait, as filelock does.
    """
    if one not in _waited:
        _waited.append(one)
    _register()


def _importing() -> bool:
    """Whether another thread imports a module of these packages; False where Python does not say."""
    locks: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    held = [lock() for name, lock in list(locks.items()) if name.partition(".")[0] in _OURS]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in held)


def _before_fork() -> None:
    """Wait for the locks, and for imports: Python leaves a module that another thread imports locked in the child."""
    end = time.monotonic() + _SECONDS
    while True:
        waited = tuple(_waited)
        for one in waited:
            one.acquire()
            _held.append(one)
        if time.monotonic() > end or not (_importing() or len(waited) < len(_waited)):
            return
        for _ in waited:  # an import may ask for one
            _held.pop().release()
        time.sleep(0.001)


def _after_fork() -> None:
    while _held:  # an interrupt ends the wait, and Python forks all the same
        _held.pop().release()


def _register() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


_register()


def _after_fork_in_child() -> None:
    for each in list(_locks):
        if not each._is_owned():
            each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
