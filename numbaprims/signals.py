"""Signals, whose handlers in Python may raise at any place: what cannot be left halfway."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["wait", "whole_refresh"]


_waiting = False


@contextmanager
def wait() -> Iterator[None]:
    """Let what Python does for signals, which may raise, be done behind the block (the outermost one)."""
    global _waiting
    if _waiting or threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    late: dict[int, Any] = {}
    waiting = True

    def handle(number: int, frame: Any) -> None:
        if waiting:
            late[number] = frame
        else:  # the loop below was interrupted
            handlers[number](number, frame)

    found = ((number, signal.getsignal(number)) for number in range(1, signal.NSIG))
    handlers = {number: handler for number, handler in found if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, handle)
        _waiting = True
        yield
    finally:
        waiting = _waiting = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        with ExitStack() as each:  # which goes on behind one that raises
            for number, frame in late.items():
                each.callback(handlers[number], number, frame)


def whole_refresh(target: Any) -> None:
    """Let no signal end a `refresh` of Numba's contexts for a target halfway, from now on.

    What it has not registered by then it takes for registered, and no later compilation of the process would find it.
    The first one takes 0.3 s.
    """
    for context in (target.typing_context, target.target_context):
        if "refresh" not in vars(context):

            def refresh(plain: Callable[[], None] = context.refresh) -> None:
                with wait():
                    plain()

            context.refresh = refresh
