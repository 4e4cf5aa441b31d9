"""The public functions inside a user's own `@njit`: the entry point that Numba calls, and what compiled code calls.

`init` runs at the first `njit` of every user of Numba, whether they use us or not. So it imports nothing but Python's
own modules: the functions are made known to Numba one by one, when the package's `__getattr__` first gives them out.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["init", "miss", "register", "site"]

_active = False


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
    return int(_part("sites").address_of(description))


def miss(address: int, block: int) -> int:
    """The record for a call that the site does not know; 0 where the call has been done."""
    sites = _part("sites")
    try:
        return int(sites.of_address(address).miss(block))
    except Exception as error:
        sites.tell_lost(error)
        raise


def _part(name: str) -> Any:
    return importlib.import_module(f"numbaprims.jitted.{name}")
