"""What `fast_call` reads, in words: patterns of calls, those of a function, and what all functions share."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims import settings
from numbaprims.cpu.fast_call import (
    ARRAY,
    CONSTANT,
    FLOAT,
    INTEGER,
    LIST,
    LIST_ITEMS,
    M_MASK,
    M_PLACES,
    M_SEEN,
    M_SHARED,
    MOST_ARGUMENTS,
    P_HASH,
    P_HEAD,
    P_NAMED,
    P_OPERANDS,
    P_OWNER,
    P_TABLE,
    S_BASE_AT,
    S_CALLS,
    S_CALLS_AT,
    S_DEFAULT,
    S_FLOAT,
    S_INTEGER,
    S_LEARN,
    S_LIST,
    S_MERGED_AT,
    S_NDARRAY,
    S_NONE,
    S_PARAMETER,
    S_TENSOR,
    S_TUPLE,
    S_VARIABLE,
    SAME,
    SHARED_WORDS,
    TUPLE,
    fast_call as fast_call,
)
from numbaprims.cpu.known_table import Table
from numbaprims.cpu.known_words import FACTOR, SIZE_AT, signed
from numbaprims.cpu.simd.arguments import FLOAT_SLOTS

#: What cannot change between two calls that give the same object.
_CONSTANTS = (type(None), bool, int, str, type, np.dtype)


class Pattern:
    """A pattern, as words, and what has to stay alive with them."""

    def __init__(self, words: Sequence[int], looks: int, kept: Any) -> None:
        """The last `looks` words before those of the launch say what the arguments are."""
        end = P_HEAD + words[P_NAMED] + looks
        self.key = (*words[:P_TABLE], *words[P_HEAD:end])
        """What tells it from others."""
        self.launch = (*words[P_OPERANDS:P_HEAD], *words[end:])
        """Which arguments a launch takes, and its numbers."""
        self.words, self._kept, self._table = np.array(words, np.int64), kept, Table()

    def take(self, record: np.ndarray, keep: Any) -> None:
        """Put a record into its table."""
        self._table = self._table.with_record(record, keep)
        owner = self._table.words, self._table, self.words
        self.words[P_TABLE : P_OWNER + 1] = owner[0].ctypes.data, id(owner)  # both before another thread reads
        self._owner = owner


def function_words(wrapped: Any, patterns: Iterable[Pattern], before: np.ndarray | None) -> np.ndarray:
    """The words of a function: Python's own, what has come `before`, and its patterns by their hashes."""
    every = list(patterns)
    places = 16 << (len(every) // 8).bit_length()
    words = np.zeros(M_PLACES + places, np.int64)
    words[M_SHARED : M_MASK + 1] = shared().ctypes.data, id(wrapped), places - 1
    if before is not None:
        words[M_SEEN:M_PLACES] = before[M_SEEN:M_PLACES]
    for pattern in every:
        place = int(pattern.words[P_HASH]) & places - 1
        while words[M_PLACES + place]:
            place = (place + 1) & places - 1
        words[M_PLACES + place] = pattern.words.ctypes.data
    return words


class Said(NamedTuple):
    """What a call says, as native code looks at it."""

    looks: list[int]
    """Of each argument, and of what lists and tuples hold, its kind and value."""
    arrays: dict[int, Any]
    """The arrays by their places, where they come first."""
    placed: int
    named: tuple[str, ...]
    out: Any
    kept: list[Any]
    """What is compared by address."""


def said(placed: Sequence[Any], named: dict[str, Any]) -> Said | None:
    """What a call says; None where it has other arguments than arrays of the host, constants, and lists and tuples of
    these."""
    types = _array_types()
    found = Said([], {}, len(placed), tuple(named), named.get("out"), [])
    for x in (*placed, *named.values()):
        if type(x) in (list, tuple):
            found.looks.extend((LIST if type(x) is list else TUPLE, len(x)))
        for each in x if type(x) in (list, tuple) else (x,):
            if type(each) in types:
                if type(each) is not np.ndarray and not each.is_cpu:
                    return None
                first = next((at for at, other in found.arrays.items() if other is each), None)
                if first is None:
                    found.arrays[len(found.looks) // 2] = each
                look = (ARRAY, 0) if first is None else (SAME, first)
            elif type(each) is float:
                look = FLOAT, _bits(each)
            elif type(each) is int and each == signed(each):
                look = INTEGER, each
            elif _is_constant(each):
                look = CONSTANT, id(each)
                found.kept.append(each)
            else:
                return None
            found.looks.extend(look)
    return found if len(found.looks) < 2 * MOST_ARGUMENTS else None


def make_pattern(said: Said, calls: Any, out: Any, taken: Sequence[Any], numbers: Sequence[Any]) -> Pattern | None:
    """The pattern of a call whose first result goes to `out`, None where that is made, and whose launch takes these.

    None where an argument is an array without a place of its own in the launch: what it is for, the call does not say,
    and it may be read as a number (`prelu(x, x)` of one element).
    """

    def place(x: Any) -> int:
        """Which argument an array is."""
        return -1 if x is None else next((at for at, each in said.arrays.items() if each is x), -2)

    if len(numbers) > FLOAT_SLOTS or any(type(x) is not float for x in numbers):
        return None
    target, which = place(out), [place(x) for x in taken]
    kinds, values = said.looks[::2], said.looks[1::2]
    for at, x in said.arrays.items():
        arguments = 1 + sum(kind == SAME and value == at for kind, value in zip(kinds, values, strict=True))
        if arguments > which.count(at) + (said.out is x):
            return None
    if -2 in (target, *which):
        return None
    names = [*map(id, said.named)]
    digest = _digest(id(calls) ^ said.placed, [*names, *map(sum, zip(kinds, values, strict=True))])
    words = [digest, id(calls), said.placed, len(names), len(kinds), 0, 0, len(taken), len(numbers), target]
    words += [*names, *said.looks, *which, *map(_bits, numbers)]
    return Pattern(words, len(said.looks), (calls, said.named, said.kept))


def _array_types() -> tuple[type, ...]:
    """The types whose objects are arrays of a call."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return (np.ndarray,)
    types = torch.Tensor, torch.nn.Parameter
    shared()[S_TENSOR : S_PARAMETER + 1] = id(types[0]), id(types[1])
    return (np.ndarray, *types)


def _is_constant(x: Any) -> bool:
    if type(x) is tuple:
        return all(map(_is_constant, x))
    return isinstance(x, _CONSTANTS) or (type(x).__module__ == "torch" and type(x).__name__ == "dtype")


def _bits(number: float) -> int:
    return ctypes.c_int64.from_buffer(ctypes.c_double(number)).value


def _digest(first: int, more: Sequence[int]) -> int:
    """As native code has it."""
    digest = signed(first * FACTOR)
    for each in more:
        digest = signed(((digest ^ (digest >> 29)) ^ signed(each)) * FACTOR)
    digest = signed((digest ^ (digest >> 32)) * FACTOR)
    return digest ^ (digest >> 32)


# ---------------------------------------------------------------- what native code reads of Python's objects


def word_of(thing: Any, at: int) -> Any:
    """A word of an object, so many bytes into it."""
    return ctypes.c_int64.from_address(id(thing) + at)


def _place_of(thing: Any, name: str) -> int:
    """Where an object with slots has one, in bytes; 0 where it is not found."""
    places = range(object.__basicsize__, type(thing).__basicsize__, 8)
    return next((at for at in places if word_of(thing, at).value == id(getattr(thing, name))), 0)


@functools.cache
def shared() -> np.ndarray:
    """The words that all functions read; `_follow` fills those of the process default."""
    words = np.zeros(SHARED_WORDS, np.int64)
    words[S_NDARRAY], words[S_FLOAT], words[S_INTEGER], words[S_TUPLE] = map(id, (np.ndarray, float, int, tuple))
    words[S_NONE] = id(None)
    probe = [object(), object()]
    at = word_of(probe, 8 * LIST_ITEMS).value
    if (word_of(probe, 8 * SIZE_AT).value, ctypes.c_int64.from_address(at).value) == (len(probe), id(probe[0])):
        words[S_LIST] = id(list)
    words[S_VARIABLE] = id(settings._override)
    with settings.config(threads=1):
        override = settings._lookup()
        assert override is not None
        words[S_BASE_AT], words[S_MERGED_AT] = _place_of(override, "base"), _place_of(override, "merged")
        words[S_CALLS_AT] = _place_of(override.merged, "calls")
    settings.watch(_follow)
    return words


def _follow() -> None:
    default = settings._default
    shared()[S_DEFAULT : S_CALLS + 1] = id(default), id(default.calls)


def start(learn: Callable[..., Any]) -> bool:
    """Tell native code of the settings, and of the function that learns, which stays alive. Whether all that it reads
    is where it is looked for, under Python's lock."""
    shared()[S_LEARN] = id(learn)
    _follow()
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(locked and shared()[[S_BASE_AT, S_MERGED_AT, S_CALLS_AT]].all())
