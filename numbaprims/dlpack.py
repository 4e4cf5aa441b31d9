"""DLPack capsules of device arrays, read with ctypes: for arrays that speak no CUDA array interface."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

CPU, CUDA = 1, 2
_CODES = {
    (0, 8): "i8", (0, 32): "i32", (0, 64): "i64", (1, 8): "u8", (2, 16): "f16", (2, 32): "f32", (2, 64): "f64",
    (4, 16): "bf16", (6, 8): "bool",
}  # fmt: skip
_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, of DLPack 1."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class Opened(NamedTuple):
    """What a capsule says."""

    pointer: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    """Strides in elements."""
    dtype: str
    """A short name ("f32"), or words for a type that is none of ours."""
    readonly: bool


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def open_tensor(x: Any, stream: int) -> tuple[Opened, Any]:
    """Ask an array for its capsule, in the order of a stream; what it says, and the capsule.

    The capsule is left unused, so its own destructor gives the memory back; whoever reads the memory keeps it.
    """
    # 1 is DLPack's word for the default stream, whose address is 0
    try:
        capsule = x.__dlpack__(stream=stream or 1, max_version=(1, 0))
    except TypeError:  # a producer from before version 1
        capsule = x.__dlpack__(stream=stream or 1)
    return read(capsule), capsule


def read(capsule: Any) -> Opened:
    """What a capsule of either version says; ValueError for one that is used up."""
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        tensor, readonly = _Tensor.from_address(_pointer(capsule, b"dltensor")), False
    else:
        raise ValueError("the DLPack capsule was used before")
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        steps = tuple(tensor.strides[: tensor.ndim])
    else:
        found = []
        step = 1
        for length in reversed(shape):
            found.append(step)
            step *= max(1, length)
        steps = tuple(reversed(found))
    dtype = _CODES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    words = f"DLPack type {tensor.code} of {tensor.bits} bits and {tensor.lanes} lanes"
    return Opened((tensor.data or 0) + tensor.byte_offset, shape, steps, dtype or words, readonly)
