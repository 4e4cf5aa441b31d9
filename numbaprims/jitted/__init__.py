"""The public functions inside a user's own `@njit`: the entry point that Numba calls, and what compiled code calls.

`init` runs at the first `njit` of every user of Numba, whether they use us or not. So it imports nothing but Python's
own modules: the functions are made known to Numba one by one, when the package's `__getattr__` first gives them out.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

__all__ = ["init", "kept", "miss", "register", "site"]

_active = False
#: Of each thread, by its number: those that Python does not know have no `threading.local` that lasts.
_errors: dict[int, BaseException] = {}


def init() -> None:
    """Let Numba compile calls of the public functions; the entry point `numba_extensions` of the package."""
    global _active
    _active = True
    package = sys.modules.get("numbaprims")
    for name, value in list(vars(package).items()) if package else ():
        register(name, value)


def register(name: str, function: Any) -> None:
    """Make one public function known to Numba, if it has a place in the table and `init` was called."""
    if _active and callable(function) and not name.startswith("_"):
        _part("overloads").register(name, function)


def site(description: str) -> int:
    """The address of the words of a call site; compiled code asks once for each process."""
    try:
        return int(_part("sites").address_of(description))
    except BaseException as error:
        _keep(error)
        raise


def miss(address: int, block: int) -> int:
    """The record for a call that the site does not know; 0 where the call has been done."""
    try:
        return int(_part("sites").of_address(address).miss(block))
    except BaseException as error:
        _keep(error)
        raise


def kept() -> BaseException:
    """The exception of the thread's last call that failed: compiled code raises it as one of its own."""
    return _errors.pop(threading.get_ident(), None) or RuntimeError("a call inside @njit failed")


def _keep(error: BaseException) -> None:
    _errors[threading.get_ident()] = error
    _part("sites").tell_lost(error)


def _part(name: str) -> Any:
    return importlib.import_module(f"numbaprims.jitted.{name}")
