"""The public functions as objects that native code answers (`cpu/fast_call.py`): their type, and how they learn.

`fast(function)` is a `staticmethod` object with CPython's vectorcall: its name, docstring, signature and source are
the function's.  It calls the function until native code was told of a first call, and with whatever that does not know.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

from numbaprims import forks, settings
from numbaprims.dispatch.launchers import remember

#: Patterns of one function; then all are forgotten.
MOST_PATTERNS = 256
_PY_SSIZE, _READONLY, _MEMBERS, _HAVE_VECTORCALL = 19, 1, 72, 1 << 11  # of CPython's headers, which keep them
_WORD = 8


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int),
        ("words", ctypes.c_char_p),
    )  # fmt: skip


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("value", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("size", ctypes.c_int), ("item", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )  # fmt: skip


# Behind a staticmethod's own words: the function that CPython calls, and the words that this reads.
_CALL_AT = staticmethod.__basicsize__
_MEMO_AT = _CALL_AT + _WORD
_members = (_Member * 2)(_Member(b"__vectorcalloffset__", _PY_SSIZE, _CALL_AT, _READONLY, None))
_slots = (_Slot * 2)(_Slot(_MEMBERS, ctypes.addressof(_members)))
_spec = _Spec(b"numbaprims.dispatch.fast_path.FastFunction", _CALL_AT + 2 * _WORD, 0, _HAVE_VECTORCALL, _slots)
_make_type = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object)(
    ("PyType_FromSpecWithBases", ctypes.pythonapi)
)
FastFunction: Any = _make_type(ctypes.addressof(_spec), (staticmethod,))
FastFunction.__doc__ = "A public function; calls like earlier ones are answered by native code."
FastFunction.__repr__ = lambda self: repr(self.__wrapped__)
FastFunction.__reduce__ = lambda self: (_public, (self.__name__,))
FastFunction.__getattr__ = lambda self, name: getattr(self.__wrapped__, name)  # `numbaprims.gemm.plan`


def _public(name: str) -> Any:
    """A public function, where a pickle is read."""
    return getattr(importlib.import_module("numbaprims"), name)


class Memo:
    """What native code knows of a function's calls."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._patterns: dict[tuple[int, ...], Any] = {}
        self._words: Any = None

    def arm(self) -> None:
        """Let native code answer from now on."""
        table = _table()
        self._lay({}, None)
        remember(self)
        table.word_of(self._function, _CALL_AT).value = table.fast_call(_MEMO_AT)

    def clear(self) -> None:
        """Forget every call."""
        with _lock:
            self._lay({}, None)

    def add(self, pattern: Any, record: Any, keep: Any) -> None:
        """Know calls of a pattern whose arrays are as the record has them."""
        with _lock:
            known = self._patterns.get(pattern.key, pattern)
            if known.launch != pattern.launch:
                return  # arrays of another kind make another launch of the same arguments
            known.take(record, keep)
            if known is pattern:
                others = self._patterns if len(self._patterns) < MOST_PATTERNS else {}
                self._lay(others | {pattern.key: pattern}, self._words)

    def __len__(self) -> int:
        return len(self._patterns)

    def _lay(self, patterns: dict[tuple[int, ...], Any], before: Any) -> None:
        """The words anew. Old ones and their patterns go when no thread can find them any more: one that reads them
        keeps Python's lock until it has."""
        table = _table()
        words = table.function_words(self._function.__wrapped__, patterns.values(), before)
        table.word_of(self._function, _MEMO_AT).value = words.ctypes.data
        self._patterns, self._words = patterns, words


class Notes:
    """In the place of `Settings.calls` while a call is learned: `KnownCalls` leaves here what it would remember."""

    def __init__(self, calls: Any) -> None:
        self.calls = calls
        """What stands there otherwise."""
        self.records: list[tuple[Any, ...]] = []
        """(record, what stays alive with it, its arrays, how many are results, whether the first was made by the call,
        the numbers of the launch)."""


def notes_of(key: Any) -> Notes | None:
    """The notes in a key of `KnownCalls`, (options, `Settings.calls`)."""
    return key[1] if type(key) is tuple and type(key[1]) is Notes else None


class _noting(settings.config):
    """``with _noting(notes):`` the settings as they are, and calls are noted."""

    __slots__ = ("_notes",)

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def __enter__(self) -> settings.Settings:
        merged = super().__enter__()
        object.__setattr__(merged, "calls", self._notes)
        return merged


_memos: dict[int, Memo] = {}
_armed: bool | None = None
"""Whether native code answers; None before it was asked."""
_lock = forks.lock()  # of all patterns; a destructor may call too


def fast(function: Callable[..., Any]) -> Any:
    """A public function that native code may answer."""
    made = FastFunction(function)
    with _lock:
        memo = _memos[id(made)] = Memo(made)  # which keeps it
        if _armed:
            memo.arm()
    return made


def memo_of(function: Any) -> Memo:
    """What is known of a public function."""
    return _memos[id(function)]


def arm() -> None:
    """Let native code answer; called where it has been told of a first call, so that all it needs is there."""
    global _armed
    if _armed is not None:
        return
    table = _table()
    table.fast_call(_MEMO_AT)  # compiled without the lock, for which a thread that compiles may wait
    with _lock:
        _armed = table.start(_learn)
        for memo in _memos.values() if _armed else ():
            memo.arm()


def _table() -> Any:
    return importlib.import_module("numbaprims.cpu.fast_table")


def _learn(function: Any, /, *placed: Any, **named: Any) -> Any:
    """A call of Python's function, after which native code knows calls like it, if they can be known."""
    state, table = settings.current(), _table()
    # a part of what is learned, a call that is timed: not
    said = None if type(state.calls) is Notes or state.trial is not None else table.said(placed, named)
    if said is None:
        return function.__wrapped__(*placed, **named)
    notes = Notes(state.calls)
    with _noting(notes):
        result = function.__wrapped__(*placed, **named)
    if len(notes.records) != 1 or state is not settings.current():
        return result
    record, keep, arrays, results, made, numbers = notes.records[0]
    given = (result,) if results == 1 else result
    if type(given) is tuple and [*map(id, given)] == [*map(id, arrays[:results])]:  # what the launch gave, as it is
        pattern = table.make_pattern(said, state.calls, None if made else arrays[0], arrays[results:], numbers)
        if pattern is not None:
            _memos[id(function)].add(pattern, record, keep)
    return result
