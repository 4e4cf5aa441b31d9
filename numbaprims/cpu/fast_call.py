"""Public functions that native code answers: a call like an earlier one enters no Python.

A *pattern* is what a call says beside its arrays: how many arguments come by place, the names of the others,
constants, and the settings in force.  Of each pattern there is a table of `known_table`'s records, and which argument
is which array of a launch; so native code goes from CPython's call to the kernel.  In Python the function, its
keywords, its options and the lookup take 0.4 us (Zen 4), and NumPy's ``add`` of 8 numbers as a whole 0.34.

Numbers are compared by value, lists and tuples by what they hold, other constants by address.  What a function makes of
them, and of the arrays' types and lengths, is in the record, whose arrays are compared as those of every known call.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import types

from numbaprims.cpu.drivers import CALL_WORDS, data_word
from numbaprims.cpu.interpreter import C_WORDS
from numbaprims.cpu.jit import c_function
from numbaprims.cpu.known_words import (
    DTYPE_AT,
    FACTOR,
    FIND,
    INT,
    LENGTHS_AT,
    MOST_ARRAYS,
    NDIM_AT,
    OBJECT_TYPE,
    SIZE_AT,
    STRIDES_AT,
    VALUE_AT,
    items_word,
)
from numbaprims.cpu.simd.arguments import FLOAT_SLOT, FLOAT_SLOTS, call_word, load_word, stack_words, store_word

# Words of what all functions share: Python's types (of lists 0 where their items are not found) and None; the variable
# of settings, the process default, its `calls`, and where (bytes) an override has its base and its record and that its
# `calls`; what learns.
S_NDARRAY, S_TENSOR, S_PARAMETER, S_FLOAT, S_INTEGER, S_TUPLE, S_LIST, S_NONE = range(8)
S_VARIABLE, S_DEFAULT, S_CALLS, S_BASE_AT, S_MERGED_AT, S_CALLS_AT, S_LEARN, SHARED_WORDS = range(8, 16)
# Words of a function: those, Python's function, the mask of its places; how often what is not known has come, by
# hash; then the places of patterns.
M_SHARED, M_WRAPPED, M_MASK, M_SEEN = range(4)
SEEN = 256
M_PLACES = M_SEEN + 2 * SEEN
# Words of a pattern: its hash, the `calls` of its settings, how many arguments by place, by name and in all, where a
# list or a tuple counts one and what it holds; its table, and what keeps that and these words alive; how many
# operands and floats of a launch, which argument the first result goes to, or -1; then the names, of each argument its
# kind and value, of each operand its argument, or -1, and the floats.
P_HASH, P_CALLS, P_PLACED, P_NAMED, P_EVERY, P_TABLE, P_OWNER, P_OPERANDS, P_FLOATS, P_OUT, P_HEAD = range(11)
ARRAY, CONSTANT, FLOAT, INTEGER, TUPLE, LIST, SAME = range(7)
#: Arguments of a call, with those in lists.
MOST_ARGUMENTS = 32
LIST_ITEMS = 3  # the word of a list with the address of its items
#: The call of its kind at which a pattern is learned; tried again where that failed, ever more rarely.
LEARN_AT = (2, 3, 8, 64, 4096)

_LOOKS, _MORE = 2 * MOST_ARGUMENTS, 1 + MOST_ARGUMENTS
_COUNT = (1 << 62) - 1  # of the arguments, without the flag of CPython's above it

_incref = types.ExternalFunction("Py_IncRef", types.void(types.int64))
_decref = types.ExternalFunction("Py_DecRef", types.void(types.int64))
_variable = types.ExternalFunction("PyContextVar_Get", types.int32(types.int64, types.int64, types.int64))
_integer = types.ExternalFunction("PyLong_AsLongLongAndOverflow", types.int64(types.int64, types.int64))
_clear = types.ExternalFunction("PyErr_Clear", types.void())
_vectorcall = types.ExternalFunction(
    "PyObject_Vectorcall", types.int64(types.int64, types.int64, types.int64, types.int64)
)


@functools.cache
def fast_call(at: int) -> Any:
    """The C function that CPython calls for an object whose words of `M_...` are at the address `at` bytes into it."""
    word, items = data_word(), items_word()

    @c_function("fast_call", spec=(word, items, at, MOST_ARRAYS))
    def call(itself, arguments, count, names):  # type: ignore[no-untyped-def]
        memo = load_word(itself + at, 0)
        shared = load_word(memo, M_SHARED)
        placed, named = count & _COUNT, 0
        if names != 0:
            named = load_word(names, SIZE_AT)
        said = placed + named
        # which settings
        calls, held = load_word(shared, S_CALLS), stack_words(1)
        store_word(held, 0, 0)
        if _variable(load_word(shared, S_VARIABLE), 0, held) < 0:
            _clear()
        override = load_word(held, 0)
        none = load_word(shared, S_NONE)
        if override != 0:
            if override != none:
                calls = none
                if load_word(override + load_word(shared, S_BASE_AT), 0) == load_word(shared, S_DEFAULT):
                    merged = load_word(override + load_word(shared, S_MERGED_AT), 0)
                    calls = load_word(merged + load_word(shared, S_CALLS_AT), 0)
            _decref(override)
        if calls == none or said >= MOST_ARGUMENTS:
            return _vectorcall(load_word(memo, M_WRAPPED), arguments, count, names)
        # which pattern
        ndarray_type, float_type = load_word(shared, S_NDARRAY), load_word(shared, S_FLOAT)
        integer_type = load_word(shared, S_INTEGER)
        tensor_type, parameter_type = load_word(shared, S_TENSOR), load_word(shared, S_PARAMETER)
        looks, flat, every = stack_words(_LOOKS), stack_words(MOST_ARGUMENTS), 0
        digest = (calls ^ placed) * FACTOR
        for k in range(named):
            digest = ((digest ^ (digest >> 29)) ^ load_word(names, items + k)) * FACTOR
        for k in range(said):
            first, length = arguments + 8 * k, 1
            given = load_word(first, 0)
            kind, how = load_word(given, OBJECT_TYPE), CONSTANT
            if kind == load_word(shared, S_LIST):
                first, how = load_word(given, LIST_ITEMS), LIST
            elif kind == load_word(shared, S_TUPLE):
                first, how = given + 8 * items, TUPLE
            if how != CONSTANT:
                length = load_word(given, SIZE_AT)
            if every + length >= MOST_ARGUMENTS:
                return _vectorcall(load_word(memo, M_WRAPPED), arguments, count, names)
            if how != CONSTANT:
                store_word(looks, 2 * every, how)
                store_word(looks, 2 * every + 1, length)
                digest = ((digest ^ (digest >> 29)) ^ (length + how)) * FACTOR
                every += 1
            for j in range(length):
                given = load_word(first, j)
                kind = load_word(given, OBJECT_TYPE)
                how, value = CONSTANT, given
                if kind == ndarray_type or kind == tensor_type or kind == parameter_type:
                    how, value = ARRAY, 0
                    for other in range(every):  # an array that is an earlier argument
                        if load_word(looks, 2 * other) == ARRAY and load_word(flat, other) == given:
                            how, value = SAME, other
                elif kind == float_type:
                    how, value = FLOAT, load_word(given, VALUE_AT)
                elif kind == integer_type:
                    number = _integer(given, held)
                    if load_word(held, 0) & INT == 0:
                        how, value = INTEGER, number
                store_word(flat, every, given)
                store_word(looks, 2 * every, how)
                store_word(looks, 2 * every + 1, value)
                digest = ((digest ^ (digest >> 29)) ^ (value + how)) * FACTOR
                every += 1
        digest = (digest ^ (digest >> 32)) * FACTOR  # floats differ in their upper bits, which a product moves up
        digest ^= digest >> 32
        mask, place, pattern = load_word(memo, M_MASK), digest, 0
        while True:
            place &= mask
            pattern = load_word(memo, M_PLACES + place)
            if pattern == 0:
                break
            fits = (
                load_word(pattern, P_HASH) == digest
                and load_word(pattern, P_CALLS) == calls
                and load_word(pattern, P_PLACED) == placed
                and load_word(pattern, P_NAMED) == named
                and load_word(pattern, P_EVERY) == every
            )
            if fits:
                kinds = pattern + 8 * (P_HEAD + named)
                for k in range(named):
                    if load_word(pattern, P_HEAD + k) != load_word(names, items + k):
                        fits = False
                for k in range(2 * every):
                    if load_word(kinds, k) != load_word(looks, k):
                        fits = False
            if fits:
                break
            place += 1
        if pattern != 0:
            block, source = stack_words(CALL_WORDS), stack_words(MOST_ARRAYS)
            words = block + 8 * C_WORDS
            operands, floats = load_word(pattern, P_OPERANDS), load_word(pattern, P_FLOATS)
            which = pattern + 8 * (P_HEAD + named + 2 * every)
            for k in range(operands):
                argument = load_word(which, k)
                store_word(source, k, none if argument < 0 else load_word(flat, argument))
            for k in range(FLOAT_SLOTS):
                store_word(words, FLOAT_SLOT + k, load_word(which, operands + k) if k < floats else 0)
            into, table, owner = load_word(pattern, P_OUT), load_word(pattern, P_TABLE), load_word(pattern, P_OWNER)
            out = none if into < 0 else load_word(flat, into)
            _incref(owner)  # other threads may replace what is read here while a program runs or torch is asked
            found = call_word(load_word(table, FIND), table, out, source, operands, block, 0, 0, 0)
            _decref(owner)
            if found >= 0:
                return found
            memo = load_word(itself + at, 0)  # another thread may have made it anew
            if found == -2:  # known, and Python launches
                return _vectorcall(load_word(memo, M_WRAPPED), arguments, count, names)
        for k in range(every):  # by what its arrays are, too
            if load_word(looks, 2 * k) == ARRAY and load_word(load_word(flat, k), OBJECT_TYPE) == ndarray_type:
                fields = load_word(flat, k) + 8 * word
                lengths, strides = load_word(fields, LENGTHS_AT), load_word(fields, STRIDES_AT)
                digest = (digest ^ (digest >> 29) ^ load_word(fields, DTYPE_AT)) * FACTOR
                for d in range(load_word(fields, NDIM_AT) & INT):
                    digest = (digest ^ (digest >> 29) ^ load_word(lengths, d)) * FACTOR
                    digest = (digest ^ (digest >> 29) ^ load_word(strides, d)) * FACTOR
        digest ^= digest >> 32
        seen, other = M_SEEN + 2 * ((digest >> 7) & (SEEN - 1)), M_SEEN + 2 * ((digest >> 23) & (SEEN - 1))
        seen, other = memo + 8 * seen, memo + 8 * other
        if load_word(other, 0) == digest or (
            load_word(seen, 0) != digest and load_word(other, 1) < load_word(seen, 1)
        ):  # of two places the one where it is, else where what is there has come less often
            seen = other
        times = load_word(seen, 1) + 1 if load_word(seen, 0) == digest else 1
        store_word(seen, 0, digest)
        store_word(seen, 1, times)
        if times in LEARN_AT:
            more = stack_words(_MORE)
            store_word(more, 0, itself)
            for k in range(said):
                store_word(more, 1 + k, load_word(arguments, k))
            return _vectorcall(load_word(shared, S_LEARN), more, placed + 1, names)
        return _vectorcall(load_word(memo, M_WRAPPED), arguments, count, names)

    return call.address
