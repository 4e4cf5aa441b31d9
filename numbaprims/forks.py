"""Locks for processes that fork: what another thread holds at that moment, nobody releases in the child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["lock", "wait_for"]

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


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
    held: list[Any] = []  # by the thread that forks

    def before() -> None:
        one.acquire()
        held.append(one)

    def after() -> None:
        if held:  # an interrupt ends the wait, and Python forks all the same
            held.pop().release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


def _after_fork_in_child() -> None:
    for each in list(_locks):
        if not each._is_owned():
            each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
