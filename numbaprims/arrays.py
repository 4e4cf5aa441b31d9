"""What is an array: NumPy, torch and DLPack arrays in, kernel views, the same library's array out.

Kernels of the CPU see NumPy arrays only; what lies on a GPU enters by device_arrays.py. float16 and bfloat16
travel as the uint16 patterns of their bits, because Numba has no CPU float16. Everything here is on the path of
every call: one NumPy array enters in 0.2 us, one tensor in 1.1 us (0.7 us of it tensor.numpy()).
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import numpy as np
from numpy import ndarray

from numbaprims.dtypes import DTYPES as DTYPES, LONG_NAMES as LONG_NAMES
from numbaprims.libraries import (
    DTYPES_IN_WORDS,
    NUMPY as NUMPY,
    Library as Library,
    Torch,
    aligned_empty as aligned_empty,
    describe as describe,
    is_large as is_large,
    refuse_dtype,
    torch_library as torch_library,
)
from numbaprims.shapes import may_overlap_itself

_ALLOWED = "a NumPy array, a torch tensor, or an array that speaks DLPack or the CUDA array interface"
_UINT16 = np.dtype(np.uint16)
_STORED_AS: dict[str, np.dtype] = {"f16": _UINT16, "bool": np.dtype(np.uint8)}
# dtype object -> (name, the dtype to view it as or None). bfloat16 joins when ml_dtypes is there.
_BY_DTYPE: dict[np.dtype, tuple[str, np.dtype | None]] = {
    np.dtype(LONG_NAMES[name]): (name, _STORED_AS.get(name)) for name in DTYPES if name != "bf16"
}
# shares_memory solves a Diophantine problem; 100,000 steps end within some 10 ms.  Before NumPy 2.5 its stub allows two
# constants only; the function takes any bound.
_OVERLAP_WORK: Any = 100_000


def _learn_bfloat16() -> bool:
    """Add ml_dtypes' bfloat16 to the table if ml_dtypes is imported; say whether it was added now."""
    ml_dtypes = sys.modules.get("ml_dtypes")
    if ml_dtypes is None:
        return False
    dtype = np.dtype(ml_dtypes.bfloat16)
    if dtype in _BY_DTYPE:
        return False
    _BY_DTYPE[dtype] = ("bf16", _UINT16)
    return True


def dtype_of(x: ndarray) -> str | None:
    """Give the name ("f32", ...) of a NumPy array's element type, or None where it is not one of `DTYPES`."""
    found = _BY_DTYPE.get(x.dtype)
    if found is None and _learn_bfloat16():
        found = _BY_DTYPE.get(x.dtype)
    return None if found is None else found[0]


_BY_WORD: dict[Any, str] = {
    word: short for short, long in LONG_NAMES.items() for word in (short, long, f"torch.{long}")
}


def dtype_name(spec: Any, name: str = "out_dtype") -> str:
    """Give the name of an element type written as "f32", "float32", np.float32, np.dtype or torch.float32."""
    try:
        return _BY_WORD[spec]
    except (KeyError, TypeError):  # not seen before, or not hashable
        short = _BY_WORD.get(str(spec))
    if short is None:
        try:
            dtype = None if spec is None else np.dtype(spec)  # NumPy's None is float64
        except TypeError:
            dtype = None
        if dtype is not None and dtype not in _BY_DTYPE:
            _learn_bfloat16()
        if dtype in _BY_DTYPE:
            short = _BY_DTYPE[dtype][0]
    if short is not None:
        if isinstance(spec, (type, np.dtype)):
            _BY_WORD[spec] = short  # the text of a type takes 0.6 us
        return short
    raise TypeError(f"{name} is {spec!r}; it must be one of {', '.join(LONG_NAMES.values())}")


# ---------------------------------------------------------------- the way in


def enter(x: Any, name: str) -> tuple[Any, str, Library]:
    """Take an argument in: its storage, its dtype's name, its library.

    The storage is a NumPy array, or the `DeviceView` of one in the memory of a GPU. Nothing is copied but unaligned
    data. Raises TypeError, naming the argument, for anything that is not an array of a known element type.
    """
    if type(x) is ndarray:
        found = _BY_DTYPE.get(x.dtype)
        if found is not None and x.flags.aligned:
            return (x if found[1] is None else x.view(found[1])), found[0], NUMPY
        return _enter_ndarray(x, name)
    library = torch_library()
    # isinstance of a tensor takes 0.15 us, so plain tensors are known by their type.
    if library is not None and (type(x) is library.tensor or isinstance(x, library.tensor)):
        return _enter_tensor(x, name, library)
    return _enter_other(x, name)


def _enter_ndarray(x: ndarray, name: str) -> tuple[ndarray, str, Library]:
    dtype = dtype_of(x)
    if dtype is None:
        refuse_dtype(x, name)
    view = _BY_DTYPE[x.dtype][1]
    if not x.flags.aligned:
        x = _frozen_copy(x)
    return (x if view is None else x.view(view)), dtype, NUMPY


def _frozen_copy(x: ndarray) -> ndarray:
    """Copy what kernels cannot read where it lies: a field of a packed record steps by parts of an element.

    The copy is read-only, so that nothing is written to it in the belief that it is the caller's memory.
    """
    x = x.copy(order="K")
    x.flags.writeable = False
    return x


def _enter_tensor(x: Any, name: str, library: Torch) -> tuple[Any, str, Library]:
    if x.requires_grad:
        x = _detached(x, name, library)
    if (library.tracing() or library.modes._is_in_torch_dispatch_mode) and (tracer := library.tracer()) is not None:
        raise TypeError(
            f"{name} is traced by {tracer}, which would record this call's numbers and not the call; trace the model "
            "without it, or use torch.compile, which calls it each time"
        )
    dtype = library.names.get(x.dtype)
    if x.is_cuda:
        from numbaprims.device_arrays import enter_tensor

        return enter_tensor(x, name, dtype)
    try:
        if dtype == "bf16":
            # numpy() knows no bfloat16; the view of its bits it does know.
            storage = x.view(library.uint16).numpy()
        else:
            storage = x.numpy()
        if x.data_ptr() == 0 and x.numel():  # numpy() then shows what nobody has written
            raise RuntimeError("it has none, as within torch.func.functionalize")
    except (RuntimeError, TypeError) as error:
        return _enter_lazy_tensor(x, name, library, error)
    if dtype is None:
        raise TypeError(f"{name} is a {describe(x)}; {DTYPES_IN_WORDS}")
    if dtype in _STORED_AS:
        storage = storage.view(_STORED_AS[dtype])
    if not storage.flags.aligned:
        storage = _frozen_copy(storage)
    return storage, dtype, library


def _detached(x: Any, name: str, library: Torch) -> Any:
    if library.grad_enabled():
        raise TypeError(
            f"{name} requires grad and this function records no gradient; use "
            f"numbaprims.frontends.torch, or pass {name}.detach(), or call under torch.no_grad()"
        )
    return x.detach()


def _enter_lazy_tensor(x: Any, name: str, library: Torch, error: Exception) -> tuple[ndarray, str, Library]:
    """Resolve a tensor that numpy() refused because it is negated lazily; refuse the others in words."""
    if not x.is_cpu:
        raise TypeError(f"{name} lives on {x.device}; move it with {name}.cpu()") from error
    if "doesn't have storage" in str(error):
        raise TypeError(
            f"{name} is a {describe(x)} inside torch.vmap or a forward-mode derivative, without memory of its own; "
            "pass the whole batch (gemm, linear and activations take leading dimensions), outside of the transform"
        ) from error
    if "tensor subclasses" in str(error):
        raise TypeError(
            f"{name} has no numbers, as where torch.export traces a model; export it before its layers are replaced"
        ) from error
    if x.is_nested:
        raise TypeError(f"{name} is a nested tensor; pass its tensors one by one, or one that is padded") from error
    if not x.is_neg():
        raise TypeError(f"{name} is a {describe(x)} that has no plain CPU memory: {error}") from error
    storage, dtype, _ = _enter_tensor(x.resolve_neg(), name, library)
    return _frozen_copy(storage), dtype, library


def _enter_other(x: Any, name: str) -> tuple[Any, str, Library]:
    if isinstance(x, ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask would be lost; pass {name}.filled(value)")
        return _enter_ndarray(x.view(ndarray), name)
    if isinstance(x, type):  # which has the attributes of arrays, and none of their values
        raise TypeError(f"{name} is the {describe(x)}; it must be {_ALLOWED}")
    # `entered` is our DeviceArray's; to look for the interface would make its dict, 0.5 us
    if hasattr(x, "entered") or hasattr(x, "__cuda_array_interface__"):
        from numbaprims.device_arrays import enter_interface

        return enter_interface(x, name)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__") and not isinstance(x, np.generic):
        if int(x.__dlpack_device__()[0]) != 1:
            from numbaprims.device_arrays import enter_dlpack

            return enter_dlpack(x, name)
        try:
            return _enter_ndarray(np.from_dlpack(x), name)
        except (BufferError, RuntimeError, ValueError) as error:
            raise TypeError(f"{name} is a {describe(x)} that NumPy cannot read through DLPack: {error}") from error
    raise TypeError(f"{name} is a {describe(x)}; it must be {_ALLOWED} (np.asarray makes one of a list or a scalar)")


def values_of(x: Any, name: str) -> ndarray:
    """The values of an array of any library, of a list or of a number, in an array of the host."""
    values = x
    try:
        for read in ("cpu", "get", "to_host"):
            values = getattr(values, read)() if hasattr(values, read) else values
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:  # a tensor that requires grad, lists of several lengths
        why = "" if getattr(x, "is_nested", False) else f": {error}"  # torch asks for reports of nested ones
        raise TypeError(f"{name} is a {describe(x)} whose values cannot be read{why}") from error


def require_same(first: Any, first_name: str, other: Any, other_name: str) -> NoReturn:
    """Raise the TypeError for two arguments whose libraries or element types differ."""
    places = enter(first, first_name)[2].device, enter(other, other_name)[2].device
    if places[0] != places[1]:
        raise TypeError(
            f"{first_name} is a {describe(first)} on {places[0]} and {other_name} a {describe(other)} on {places[1]}; "
            "arrays of one call must lie on one device"
        )
    raise TypeError(
        f"{first_name} is a {describe(first)} and {other_name} a {describe(other)}; "
        "arrays of one call must come from one library and have one dtype"
    )


# ---------------------------------------------------------------- the way out


def check_out(out: Any, shape: tuple[int, ...], dtype: str, name: str = "out", library: Library | None = None) -> Any:
    """Check the array that a result goes to, and give its storage view.

    Raises TypeError for another dtype or library than the result's, ValueError for another shape, a read-only
    or unaligned array, or one whose elements share memory with one another (a broadcast view).
    """
    storage, have, of = enter(out, name)
    if library is not None and of is not library:
        where = "" if of.device == library.device else f" on {library.device}"
        raise TypeError(
            f"{name} is a {describe(out)}; the inputs are {library.name} arrays{where}, so {name} must be one too"
        )
    if have != dtype:
        raise TypeError(f"{name} is a {describe(out)}; the result is {LONG_NAMES[dtype]}")
    if storage.shape != shape:
        raise ValueError(f"{name} is a {describe(out)}; the result has shape {tuple(shape)}")
    check_writable(out, storage, name)
    if not storage.flags.c_contiguous and may_overlap_itself(storage.shape, storage.strides, storage.itemsize):
        raise ValueError(f"{name} has strides {storage.strides}: its elements share memory with one another")
    return storage


def check_writable(out: Any, storage: Any, name: str = "out") -> None:
    """Raise ValueError where `storage`, the view of the caller's `out`, cannot be written in place."""
    if not storage.flags.writeable:
        if isinstance(out, ndarray) and not out.flags.aligned:
            raise ValueError(f"{name} is not aligned to its {storage.itemsize}-byte elements; give one that is")
        raise ValueError(f"{name} is read-only; give an array that can be written in place")


def _address(x: Any) -> int:
    return int(x.__array_interface__["data"][0] if isinstance(x, ndarray) else x.pointer)


def check_overlap(out: Any, inputs: list[tuple[Any, str, bool]], name: str = "out") -> None:
    """Raise ValueError where `out` shares memory with an input.

    Each input is (storage, name, allow_exact); with allow_exact the very same elements in the same order are
    legal, as in `ger(x, y, a=w, out=w)`.
    """
    for x, input_name, allow_exact in inputs:
        if x is out and allow_exact:
            continue
        # The bounds test alone takes 0.2 us; only where it says yes the exact one runs.
        if not np.may_share_memory(out, x):
            continue
        if allow_exact and x.dtype == out.dtype and x.shape == out.shape and x.strides == out.strides:
            if _address(x) == _address(out):
                continue
        try:
            shared = np.shares_memory(out, x, max_work=_OVERLAP_WORK)
            sure = "shares"
        except np.exceptions.TooHardError:
            shared, sure = True, "may share (their strides make it too hard to tell)"
        if shared:
            exact = f"; only {name}={input_name} itself is allowed" if allow_exact else ""
            raise ValueError(f"{name} {sure} memory with {input_name}{exact}; give an array of its own")
