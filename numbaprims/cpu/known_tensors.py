"""torch's tensors in native code: where one lies, as the words that an array object would have; arrays as tensors.

In Python a tensor enters by `tensor.numpy()`, 0.7 us, and a small call of three took 6 us where one of arrays took 0.5.
torch gives native code the same by DLPack's C interface, which copies, owns and waits for nothing: 0.05 us a tensor.
It does not say whether a gradient is to be recorded or whether the numbers are negated lazily; so torch is asked (0.1
us).  Whatever is unusual of a tensor is left to Python, which computes or says why not.

References:
    DLPack 1.3, DLPackExchangeAPI: dltensor_from_py_object_no_sync.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, NamedTuple

import numpy as np
from numba import types

from numbaprims.cpu.drivers import data_word
from numbaprims.cpu.jit import c_function, helper
from numbaprims.cpu.known_words import (
    ALIGNED,
    ANY_STREAM,
    DTYPE_AT,
    FLAGS_AT,
    INT,
    LENGTHS_AT,
    MOST_DIMENSIONS,
    NDIM_AT,
    OBJECT_TYPE,
    OWN_STRIDES,
    OWN_WORDS,
    STRIDES_AT,
    TYPE_AT,
    USED_AT,
    WRITEABLE,
)
from numbaprims.cpu.simd.arguments import call_word, load_word, stack_words, store_word
from numbaprims.device_views import CLASS

# Words of what is known of torch: the functions here, as others call them; types, torch's functions, names of
# attributes, Python's True; the function of DLPack.
AS_ARRAY, AS_TENSOR, _TENSOR, _PARAMETER, _GRADED, _TRACING, _FROM_NUMPY, _REQUIRES, _NEGATED, _VIEWED = range(10)
_TRUE, _MODES, _IN_MODE, _LOOK = range(10, 14)
# Words of a DLTensor: data, device, dimensions and type, lengths, strides in elements, bytes before the first element.
_DATA, _DEVICE, _KIND, _LENGTHS, _STRIDES, _BEFORE, _VIEW_WORDS = range(7)
_CPU, _CUDA, _BRAIN = 1, 2, 4
# Behind the words of an array object comes a DLTensor.
TENSOR_WORDS = OWN_WORDS + _VIEW_WORDS

_decref = types.ExternalFunction("Py_DecRef", types.void(types.int64))
_clear = types.ExternalFunction("PyErr_Clear", types.void())
_attribute = types.ExternalFunction("PyObject_GetAttr", types.int64(types.int64, types.int64))
_asked = types.ExternalFunction("PyObject_CallNoArgs", types.int64(types.int64))
_of_one = types.ExternalFunction("PyObject_CallOneArg", types.int64(types.int64, types.int64))
_method = types.ExternalFunction(
    "PyObject_VectorcallMethod", types.int64(types.int64, types.int64, types.int64, types.int64)
)

#: What `as_array` is given before any tensor of a call.
UNASKED = 2


@helper
def _holds(torch, found):  # type: ignore[no-untyped-def]
    """Whether what torch gave is True; -1 for an error, which is forgotten."""
    if found == 0:
        _clear()
        return -1
    holds = 1 if found == load_word(torch, _TRUE) else 0
    _decref(found)
    return holds


@functools.cache
def as_array() -> Any:
    """``as_array(torch, tensor, own, ndarray_type, graded)``: make at `own` the words of an array that lies as the
    tensor does, its dtype that of DLPack; of one on a GPU its type is the device.

    `graded` is what this gave for the call's tensor before: 1 where gradients are recorded.  -1: a case for Python.
    """
    word = data_word()

    @c_function("tensor_array", spec=(word,))
    def look(torch, tensor, own, ndarray_type, graded):  # type: ignore[no-untyped-def]
        kind = load_word(tensor, OBJECT_TYPE)
        if kind != load_word(torch, _TENSOR) and kind != load_word(torch, _PARAMETER):
            return -1
        if graded == UNASKED:
            graded = _holds(torch, _asked(load_word(torch, _GRADED)))
            if graded < 0 or _holds(torch, _asked(load_word(torch, _TRACING))) != 0:
                return -1
            if _holds(torch, _attribute(load_word(torch, _MODES), load_word(torch, _IN_MODE))) != 0:
                return -1  # as make_fx, which would keep the numbers
        if graded != 0 and _holds(torch, _attribute(tensor, load_word(torch, _REQUIRES))) != 0:
            return -1
        fields = own + 8 * word
        strides, view = fields + 8 * OWN_STRIDES, fields + 8 * OWN_WORDS
        store_word(view, 0, tensor)
        if _holds(torch, _method(load_word(torch, _NEGATED), view, 1, 0)) != 0:
            return -1
        if call_word(load_word(torch, _LOOK), tensor, view, 0, 0, 0, 0, 0, 0) & INT != 0:
            _clear()
            return -1
        data = load_word(view, _DATA) + load_word(view, _BEFORE)
        ndim, dtype = load_word(view, _KIND) & INT, (load_word(view, _KIND) >> 32) & INT
        size = ((dtype >> 8) & 0xFF) >> 3
        device = load_word(view, _DEVICE)
        if load_word(view, _DATA) == 0 or ndim > MOST_DIMENSIONS:
            return -1
        owner = ndarray_type
        if device & INT != _CPU:
            if device & INT != _CUDA:
                return -1
            owner, dtype = device, dtype | (data & (CLASS - 1)) << 48
        for d in range(ndim):
            store_word(strides, d, size * load_word(load_word(view, _STRIDES), d))
        store_word(fields, TYPE_AT, owner)
        store_word(fields, USED_AT, ANY_STREAM)
        store_word(fields, 0, data)
        store_word(fields, NDIM_AT, ndim)
        store_word(fields, LENGTHS_AT, load_word(view, _LENGTHS))
        store_word(fields, STRIDES_AT, strides)
        store_word(fields, DTYPE_AT, dtype)
        store_word(fields, FLAGS_AT, WRITEABLE | (ALIGNED if data & (size - 1) == 0 else 0))
        return graded

    return look


@functools.cache
def as_tensor() -> Any:
    """``as_tensor(torch, array, dtype)``: the tensor over a new array, its elements `dtype` unless that is 0; 0, and
    Python's error is set, if it fails."""

    @c_function("array_tensor", spec=())
    def make(torch, array, dtype):  # type: ignore[no-untyped-def]
        made = _of_one(load_word(torch, _FROM_NUMPY), array)
        _decref(array)
        if made == 0 or dtype == 0:
            return made
        given = stack_words(2)
        store_word(given, 0, made)
        store_word(given, 1, dtype)
        viewed = _method(load_word(torch, _VIEWED), given, 2, 0)
        _decref(made)
        return viewed

    return make


class Seen(NamedTuple):
    """How an array or a tensor lies, and what one like it is made of."""

    storage: Any
    """An ndarray, or the view of an array on a device."""
    dtype: int
    """That of an array by its address, that of a tensor as DLPack has it; on a device with where it begins."""
    new: np.dtype
    """Of an array to be made."""
    view: Any
    """torch's dtype that a new tensor is looked at as; None for that of the array.  On a device what makes one."""
    tensor: bool = False
    owner: int = id(np.ndarray)
    """What the words of an array have in the place of its type: on a device that."""

    @property
    def address(self) -> int:
        """Of its first element."""
        return int(self.storage.ctypes.data if isinstance(self.storage, np.ndarray) else self.storage.pointer)


@functools.cache
def _interface() -> tuple[np.ndarray, Any, Any] | None:
    """(the words of what is known of torch, the function that looks at a tensor, what stays alive); None where torch
    has no such interface, or one that does not say what its Python functions say."""
    import torch

    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    tracing = getattr(torch._C, "_is_tracing", None)
    if capsule is None or tracing is None:
        return None
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = get(capsule, b"dlpack_exchange_api")
    major, minor = (ctypes.c_uint32 * 2).from_address(address)
    if major != 1 or minor < 3:
        return None
    # behind the version: an older interface, then five functions, of which the fourth fills a DLTensor
    where = (ctypes.c_int64 * 7).from_address(address)[5]
    look = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(where)
    kept = [
        torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, tracing, torch.from_numpy, "requires_grad", "is_neg",
        "view", True, torch.utils._python_dispatch, "_is_in_torch_dispatch_mode",
    ]  # fmt: skip
    words = np.array([as_array().address, as_tensor().address, *map(id, kept), where], np.int64)
    for probe in (torch.arange(24.0).reshape(2, 3, 4)[:, 1:].permute(2, 0, 1), torch.zeros(3, dtype=torch.bfloat16)):
        view = (ctypes.c_int64 * _VIEW_WORDS)()
        if look(probe, ctypes.addressof(view)) or not _agrees(probe, view):
            return None
    return words, look, kept


def _agrees(tensor: Any, view: Any) -> bool:
    """Whether a DLTensor says what the tensor does."""

    def numbers(at: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * tensor.ndim).from_address(view[at]))

    return (
        view[_DATA] + view[_BEFORE] == tensor.data_ptr()
        and view[_DEVICE] == (_CPU if tensor.is_cpu else _CUDA | tensor.get_device() << 32)
        and view[_KIND] & INT == tensor.ndim
        and (view[_KIND] >> 40) & 0xFF == 8 * tensor.element_size()
        and numbers(_LENGTHS) == tuple(tensor.shape)
        and numbers(_STRIDES) == tensor.stride()
    )


def tensor_words() -> int:
    """The address of what is known of torch."""
    found = _interface()
    return 0 if found is None else int(found[0].ctypes.data)


def look_at(x: Any) -> Seen | None:
    """How an array or a tensor lies; None for one that native code cannot look at."""
    if type(x) is np.ndarray:
        return Seen(x, id(x.dtype), x.dtype, None) if x.flags.aligned else None
    if "torch" not in sys.modules or (found := _interface()) is None or type(x) not in found[2][:2]:
        return None
    if not x.is_cpu or x.ndim > MOST_DIMENSIONS or not x.numel() or x.is_neg():
        return None
    x, view = x.detach(), (ctypes.c_int64 * _VIEW_WORDS)()
    if found[1](x, ctypes.addressof(view)) or not _agrees(x, view):
        return None
    dtype = view[_KIND] >> 32
    brain = dtype & 0xFF == _BRAIN
    storage = (x.view(sys.modules["torch"].uint16) if brain else x).numpy()
    seen = Seen(storage, dtype, storage.dtype, x.dtype if brain else None, True)
    return (
        seen if storage.flags.aligned and storage.strides == tuple(x.element_size() * n for n in x.stride()) else None
    )


def look_at_tensor(x: Any, storage: Any, maker: Any) -> Seen | None:
    """How a tensor on a GPU lies, whose view this is; None for one that native code cannot look at."""
    if "torch" not in sys.modules or (found := _interface()) is None or type(x) not in found[2][:2] or x.is_neg():
        return None
    x, view = x.detach(), (ctypes.c_int64 * _VIEW_WORDS)()
    if not x.is_cuda or found[1](x, ctypes.addressof(view)) or not _agrees(x, view):
        return None
    dtype = view[_KIND] >> 32 | storage.begin << 48
    return Seen(storage, dtype, storage.dtype, maker, True, view[_DEVICE])
