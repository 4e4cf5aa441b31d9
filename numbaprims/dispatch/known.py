"""Small calls that repeat: the tables of `cpu/known.py`, by the kind of call and the settings' key."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from numbaprims.dispatch.call import Bound, remember

# Keys of one stem; each is a table of some records.
CAPACITY = 256


class KnownCalls:
    """`get(key)` is None or (driver, address, table, made).

    `driver(address, out, a, b, f0, f1, f2)` is 1 if it has done the call, 0 if it does not know it, else 2 more than
    the number of its record.

    Fixed are the types, dtypes, shapes, strides and flags of the arrays, and which of them are the same memory.
    """

    def __init__(self) -> None:
        self._tables: dict[Any, tuple[Callable[..., int], int, Any, Any]] = {}
        self._lock = threading.Lock()
        self.get = self._tables.get  # a bare dict lookup: reads need no lock
        remember(self)

    def add(
        self, key: Any, bound: Bound, operands: Sequence[tuple[int, Any]], made: Any = None, whole: bool = False
    ) -> None:
        """Remember a checked call: (slot, array) of its arrays, the result first.  Once for each `bound`.

        With `made`, which says how results of this key are made, the driver is that of tuples (`cpu/known.py`). With
        either that or `whole` it also knows calls that it does not run; the table's records have each its `bound`.
        """
        if bound.known:
            return
        bound.known = True
        known = importlib.import_module("numbaprims.cpu.known")
        record = known.make_record(bound.launch, operands, whole or made is not None)
        driver = known.driver() if made is None else known.tuple_driver()
        if record is None or driver is None:
            return
        keep = (bound, [array.dtype for _, array in operands if array is not None])
        with self._lock:
            found = self._tables.get(key)
            table = (found[2] if found else known.Table(())).with_record(record, keep)
            self._tables[key] = (driver, table.address, table, made)
            while len(self._tables) > CAPACITY:
                del self._tables[next(iter(self._tables))]

    def clear(self) -> None:
        """Forget every call; one that runs just now keeps its table."""
        with self._lock:
            self._tables.clear()
