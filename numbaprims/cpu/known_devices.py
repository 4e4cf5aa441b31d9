"""Arrays of a GPU in native code: where one lies, as the words that an array object would have; and launches.

In Python a call on a GPU takes 10 us and more before its kernel is started, which itself takes the driver 2 us: arrays
become views, 0.9 us each, shapes and strides are looked up, and the values of all parameters are made anew.  Here the
arrays are looked at by their attributes, 30 ns each, or by DLPack's C interface (`known_tensors`); a call like an
earlier one launches what that launched (`gpu/recording.py`), with its own addresses and numbers in the places of those.

The driver's functions are called by their addresses, without Python's lock: a launch waits where 1024 others do.
`known_call` calls the two functions here by their addresses, too: who has no GPU does not compile them, 0.4 s.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from numbaprims.cpu.drivers import data_word
from numbaprims.cpu.jit import c_function, helper
from numbaprims.cpu.known import data_if_known
from numbaprims.cpu.known_tensors import AS_ARRAY, TENSOR_WORDS, Seen, look_at_tensor
from numbaprims.cpu.known_words import (
    ADD,
    ALIGNED,
    ANY_STREAM,
    ASK,
    BITS,
    BLOCKS,
    CALL,
    CONTEXT,
    DONE,
    DTYPE_AT,
    F_ARRAYS,
    F_HANDLES,
    F_MADE,
    F_RECORD,
    F_ROOM,
    F_TABLE,
    F_WORDS,
    FIXED,
    FIXES,
    FLAGS_AT,
    FUNCTION,
    GET_CURRENT,
    HEAD,
    HIGH_HALF,
    HOW,
    INT,
    LAUNCH,
    LAUNCHED,
    LAUNCHES,
    LEND,
    LENGTHS_AT,
    LOW_HALF,
    MOST_DIMENSIONS,
    MOST_TENSORS,
    NDARRAY,
    NDIM,
    NDIM_AT,
    NOT_THIS,
    OBJECT_TYPE,
    OTHERS,
    OWN_LENGTHS,
    OWN_STRIDES,
    OWNER,
    PARAMETERS,
    PLACED,
    POP,
    PUSH,
    RAISED,
    REPLACE,
    RESULTS,
    SHARED,
    SINGLE,
    SIZE_AT,
    SLOT,
    SOURCE,
    SOURCE_WORDS,
    SOURCES,
    STACK_WORDS,
    STREAM,
    STRIDES_AT,
    TENSOR_MAP,
    TENSORS,
    TORCH,
    TYPE_AT,
    UNKNOWN,
    USED_AT,
    VALUE_PLACE,
    VALUES,
    VIEW,
    WRITEABLE,
    items_word,
)
from numbaprims.cpu.program_words import ARRAYS, FURTHER, SCRATCH
from numbaprims.cpu.simd.arguments import (
    FLOAT_SLOT,
    call_launch,
    call_word,
    load_word,
    single_bits,
    store_word,
)
from numbaprims.device_views import CLASS

# Words of what is known of arrays on devices: the function that looks at one, Python's types, names of attributes, how
# many types of arrays; of each type these: itself, the name of the attribute that has the memory, and of that what
# tells the device; the name of the address, which the memory or the array has; and of the memory the stream where it
# may be written, or 0.
_LOOK, _INTEGER, _TUPLE, _SHAPE, _STRIDES, _DTYPE, _COUNT, _KINDS = range(8)
_KIND, _HOLDER, _DEVICE, _POINTER, _HAS, _USED, _KIND_WORDS = range(7)
_NO_NUMBER = -(1 << 62)

_decref = types.ExternalFunction("Py_DecRef", types.void(types.int64))
_clear = types.ExternalFunction("PyErr_Clear", types.void())
_attribute = types.ExternalFunction("PyObject_GetAttr", types.int64(types.int64, types.int64))
_asked = types.ExternalFunction("PyObject_CallNoArgs", types.int64(types.int64))
_value = types.ExternalFunction("PyLong_AsLongLong", types.int64(types.int64))
_release = types.ExternalFunction("PyEval_SaveThread", types.int64())
_acquire = types.ExternalFunction("PyEval_RestoreThread", types.void(types.int64))


# ---------------------------------------------------------------- arrays


@helper
def _number(others, thing, name):  # type: ignore[no-untyped-def]
    """An attribute that is an int."""
    found = _attribute(thing, name)
    if found == 0:
        _clear()
        return _NO_NUMBER
    value = _value(found) if load_word(found, OBJECT_TYPE) == load_word(others, _INTEGER) else _NO_NUMBER
    _decref(found)
    return value


@helper
def _numbers(others, thing, name, into, items):  # type: ignore[no-untyped-def]
    """How many ints an attribute has, a tuple of them; -1 for anything else."""
    found = _attribute(thing, name)
    if found == 0:
        _clear()
        return -1
    count = load_word(found, SIZE_AT) if load_word(found, OBJECT_TYPE) == load_word(others, _TUPLE) else -1
    if count > MOST_DIMENSIONS:
        count = -1
    for d in range(count):
        item = load_word(found, items + d)
        if load_word(item, OBJECT_TYPE) != load_word(others, _INTEGER):
            count = -1
            break
        store_word(into, d, _value(item))
    _decref(found)
    return count


@helper
def as_device(others, array, own, data_word, items):  # type: ignore[no-untyped-def]
    """Make at `own` the words of an array that lies as one on a device does; whether that is an array of a type that
    is known."""
    kind = others + 8 * _KINDS
    left = load_word(others, _COUNT)
    while left > 0 and load_word(kind, _KIND) != load_word(array, OBJECT_TYPE):
        kind += 8 * _KIND_WORDS
        left -= 1
    if left == 0:
        return False
    fields = own + 8 * data_word
    lengths, strides = fields + 8 * OWN_LENGTHS, fields + 8 * OWN_STRIDES
    ndim = _numbers(others, array, load_word(others, _SHAPE), lengths, items)
    if ndim < 0 or _numbers(others, array, load_word(others, _STRIDES), strides, items) != ndim:
        return False
    dtype, memory = _attribute(array, load_word(others, _DTYPE)), _attribute(array, load_word(kind, _HOLDER))
    if dtype == 0 or memory == 0:
        _clear()
        return False
    data = _number(others, memory if load_word(kind, _HAS) != 0 else array, load_word(kind, _POINTER))
    device = _attribute(memory, load_word(kind, _DEVICE))
    used = load_word(kind, _USED)
    if device == 0:
        _clear()
    else:
        store_word(fields, TYPE_AT, device)
        if load_word(device, OBJECT_TYPE) == load_word(others, _INTEGER):
            store_word(fields, TYPE_AT, _value(device) << 4 | 1)
        _decref(device)
    store_word(fields, 0, data)
    store_word(fields, NDIM_AT, ndim)
    store_word(fields, LENGTHS_AT, lengths)
    store_word(fields, STRIDES_AT, strides)
    store_word(fields, DTYPE_AT, dtype | (data & (CLASS - 1)) << 48)
    store_word(fields, FLAGS_AT, WRITEABLE | ALIGNED)
    store_word(fields, USED_AT, ANY_STREAM if used == 0 else _number(others, memory, used))
    _decref(dtype)
    _decref(memory)
    return device != 0 and data > 0


# ---------------------------------------------------------------- launches


@helper
def fixed_fit(device, words):  # type: ignore[no-untyped-def]
    """Whether the numbers are what they have to be."""
    fixes = device + 8 * LAUNCHED
    for k in range(load_word(device, FIXES)):
        if load_word(words, load_word(fixes, 2 * k)) != load_word(fixes, 2 * k + 1):
            return False
    return True


@helper
def stream_of(device, own, count, each, data_word):  # type: ignore[no-untyped-def]
    """The stream of a call; -1 where it is not known, or one of the arrays at `own` has to be told of it."""
    stream, ask = load_word(device, STREAM), load_word(device, ASK)
    if ask != 0:
        found = _asked(ask)
        if found == 0:
            _clear()
            return -1
        stream = _value(found)
        _decref(found)
    for k in range(count):
        used = load_word(own + each * k + 8 * data_word, USED_AT)
        if used != ANY_STREAM and used != stream:
            return -1
    return stream


@helper
def launch_on_device(device, words, stream, room, items):  # type: ignore[no-untyped-def]
    """Launch all; whether it went well."""
    lend, lent = load_word(device, LEND), 0
    if lend != 0:
        lent = _asked(lend)
        if lent == 0:
            _clear()
            return False
        store_word(words, SCRATCH, _value(load_word(lent, items)))
    fixes = device + 8 * LAUNCHED
    source = fixes + 16 * load_word(device, FIXES)
    values = source + 8 * SOURCE_WORDS * load_word(device, SOURCES)
    launch = values + 8 * load_word(device, VALUES)
    for k in range(load_word(device, VALUES)):
        store_word(room, k, load_word(values, k))
    pointers = room + 8 * load_word(device, VALUES)
    held = pointers  # the context, before there are pointers
    store_word(held, 0, 0)
    state = _release()
    status = call_word(load_word(device, GET_CURRENT), held, 0, 0, 0, 0, 0, 0, 0) & INT
    push = load_word(held, 0) != load_word(device, CONTEXT)
    if push:
        status |= call_word(load_word(device, PUSH), load_word(device, CONTEXT), 0, 0, 0, 0, 0, 0, 0) & INT
    for _ in range(load_word(device, SOURCES)):
        value, how = load_word(words, load_word(source, SOURCE)) + load_word(source, ADD), load_word(source, HOW)
        place = load_word(source, VALUE_PLACE)
        if how == TENSOR_MAP:
            status |= call_word(load_word(device, REPLACE), room + 8 * place, value, 0, 0, 0, 0, 0, 0) & INT
        elif how == SINGLE:
            store_word(room, place, single_bits(value))
        elif how == LOW_HALF:
            store_word(room, place, value & INT)
        elif how == HIGH_HALF:
            store_word(room, place, (value >> 32) & INT)
        else:
            store_word(room, place, value)
        source += 8 * SOURCE_WORDS
    for _ in range(load_word(device, LAUNCHES)):
        count = load_word(launch, PARAMETERS)
        for k in range(count):
            store_word(pointers, k, room + 8 * load_word(launch, PLACED + k))
        if status == 0:
            status = call_launch(
                load_word(launch, CALL), load_word(launch, FUNCTION), launch + 8 * BLOCKS, load_word(launch, SHARED),
                stream, pointers,
            )  # fmt: skip
        launch += 8 * (PLACED + count)
    if push:
        call_word(load_word(device, POP), held, 0, 0, 0, 0, 0, 0, 0)
    _acquire(state)
    if lent != 0:
        _decref(lent)
    return status == 0


@helper
def make_on_device(table, record, words, handles, own, data_word, items):  # type: ignore[no-untyped-def]
    """As `_make_results`, by the functions that make arrays on the device; 0 where such a one does not lie as those of
    the record, and the caller has to launch, -1 where Python's error is set."""
    at, fit = record + 8 * HEAD, 1
    ndarray_type, torch, others = load_word(table, NDARRAY), load_word(table, TORCH), load_word(table, OTHERS)
    for k in range(load_word(record, RESULTS)):
        if load_word(handles, k) == 0:
            made = _asked(load_word(at, VIEW))
            if made == 0:
                return -1
            store_word(handles, k, made)
            if load_word(record, TENSORS) != 0:
                seen = call_word(load_word(torch, AS_ARRAY), torch, made, own, ndarray_type, 0, 0, 0, 0) >= 0
            else:
                seen = as_device(others, made, own, data_word, items)
            data = data_if_known(own, at, data_word, load_word(record, OWNER)) if seen else -1
            if data == -1:
                fit = 0
            slot = load_word(at, SLOT)
            if slot >= 0:
                store_word(words, slot, data)
        at += 8 * (FIXED + 2 * load_word(at, NDIM))
    return fit


# ---------------------------------------------------------------- as functions


@functools.cache
def looker() -> Any:
    """``look(others, array, own)``: `as_device`, 1 or 0."""
    word, items = data_word(), items_word()

    @c_function("known_device_array", spec=(word, items))
    def look(others, array, own):  # type: ignore[no-untyped-def]
        return 1 if as_device(others, array, own, word, items) else 0

    return look


@functools.cache
def runner() -> Any:
    """``run(device, frame, 0)``: one of NOT_THIS, UNKNOWN, RAISED, LAUNCH, DONE."""
    word, items = data_word(), items_word()
    each = 8 * (word + TENSOR_WORDS)

    @c_function("known_device_call", spec=(word, items))
    def run(device, frame, _):  # type: ignore[no-untyped-def]
        words, arrays, made = load_word(frame, F_WORDS), load_word(frame, F_ARRAYS), load_word(frame, F_MADE)
        if not fixed_fit(device, words):
            return NOT_THIS
        stream = stream_of(device, arrays, made, each, word)
        if stream < 0:
            return UNKNOWN
        fit = make_on_device(
            load_word(frame, F_TABLE), load_word(frame, F_RECORD), words, load_word(frame, F_HANDLES),
            arrays + each * MOST_TENSORS, word, items,
        )  # fmt: skip
        if fit < 0:
            return RAISED
        return DONE if fit != 0 and launch_on_device(device, words, stream, load_word(frame, F_ROOM), items) else LAUNCH

    return run


# ---------------------------------------------------------------- as words


def _kinds() -> list[tuple[Any, ...]]:
    """The types of arrays that are known: see `_KIND`."""
    memory = sys.modules.get("numbaprims.gpu.memory")
    cupy = sys.modules.get("cupy")
    kinds: list[tuple[Any, ...]] = []
    if memory is not None:
        kinds.append((memory.DeviceArray, "memory", "driver", "pointer", False, "stream"))
    if cupy is not None and hasattr(cupy, "ndarray"):
        kinds.append((cupy.ndarray, "data", "device_id", "ptr", True, None))
    return kinds


_others: dict[tuple[Any, ...], tuple[np.ndarray, Any]] = {}


def other_words() -> int:
    """The address of what is known of arrays on devices."""
    kinds = _kinds()
    key = tuple(kind[0] for kind in kinds)
    if key not in _others:
        kept = [int, tuple, *map(sys.intern, ("shape", "strides", "dtype"))]
        words = [looker().address, *map(id, kept), len(kinds)]
        for kind, holder, device, pointer, has, used in kinds:
            names = [kind, *map(sys.intern, (holder, device, pointer)), None if used is None else sys.intern(used)]
            kept += names
            words += [*map(id, names[:4]), int(has), 0 if used is None else id(names[4])]
        _others[key] = np.array(words, np.int64), kept  # for good
    return int(_others[key][0].ctypes.data)


def look_at_device(x: Any, view: Any, maker: Callable[[], Any]) -> Seen | None:
    """How an array on a device lies, whose view this is; None for one that native code cannot look at."""
    if len(view.shape) > MOST_DIMENSIONS or not view.size:
        return None
    for kind, holder, device, _, _, _ in _kinds():
        if type(x) is kind:
            place = getattr(getattr(x, holder), device)
            owner = place << 4 | 1 if type(place) is int else id(place)
            return Seen(view, id(x.dtype) | view.begin << 48, x.dtype, maker, False, owner)
    return look_at_tensor(x, view, maker)


_HOW = {"number": SINGLE, "bits": BITS, "low": LOW_HALF, "high": HIGH_HALF, "address": BITS, "map": TENSOR_MAP}
_FORMS = {"f32": "<fxxxx", "f64": "<d"}


def launched_words(recorded: Any, numbers: tuple[float, ...], stream: int, ask: Any, lend: Any) -> np.ndarray | None:
    """`gpu.recording.Recorded` as words; None where it does not fit the room that is there.

    `ask` gives the stream, else that is `stream`; `lend` gives scratch memory, as (pointer, owner).
    """
    native = recorded.native
    values: list[int] = []
    launches: list[int] = []
    places: list[list[int]] = []
    for each in recorded.launches:
        placed = []
        for kind, value in zip(each.kinds, each.values, strict=True):
            if kind[0] == "b":
                values += [0] * (-len(values) % 8)  # the driver wants tensor maps at multiples of 64 bytes
                raw = bytes(value)
            elif kind in _FORMS:
                raw = struct.pack(_FORMS[kind], value)
            else:
                raw = (int(value) & (1 << 64) - 1).to_bytes(8, "little")
            placed.append(len(values))
            values += np.frombuffer(raw.ljust(-(-len(raw) // 8) * 8, b"\0"), np.int64).tolist()
        places.append(placed)
        call = native.together if each.together else native.launch
        launches += [call, each.function, *each.grid, *each.block, each.shared, len(placed), *placed]
    if len(values) + max((len(placed) for placed in places), default=0) >= STACK_WORDS:
        return None
    sources: list[int] = []
    for each in recorded.sources:
        number = each.how in ("number", "bits", "low", "high")
        array = each.of if each.of < ARRAYS else FURTHER + each.of - ARRAYS
        word = FLOAT_SLOT + each.of if number else SCRATCH if each.of < 0 else array
        how = _HOW[each.how]
        if how == SINGLE and recorded.launches[each.launch].kinds[each.parameter] == "f64":
            how = BITS
        sources += [places[each.launch][each.parameter] + each.at // 8, word, each.add, how]
    fixes = []
    for at in recorded.fixed:
        fixes += [FLOAT_SLOT + at, ctypes.c_int64.from_buffer(ctypes.c_double(numbers[at])).value]
    head = [runner().address, native.context, native.current, native.push, native.pop, native.replace]
    head += [0 if ask is None else id(ask), stream, 0 if lend is None else id(lend), len(recorded.launches)]
    head += [len(values), len(recorded.sources), len(recorded.fixed)]
    return np.array([*head, *fixes, *sources, *values, *launches], np.int64)
