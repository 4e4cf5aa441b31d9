"""Floats as integers of 8 and 4 bits with a scale and a zero point, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dtypes import FLOATS, LONG_NAMES
from numbaprims.ops import reduction
from numbaprims.ops._quantize_example import example_call
from numbaprims.ops._quantize_given import (
    PACKED,
    ZEROS,
    Parameters,
    QuantizeProblem,
    cut_of,
    entered,
    index_of,
    kept,
    limits_of,
    made_of,
    name_of,
    parts_of,
    place_of,
    plain,
    pose_of,
    scale_number,
    way_of,
    zero_number,
)
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems
from numbaprims.reference import quantize as reference

# ---------------------------------------------------------------- quantize


def _pose_quantize(given: Given, options: tuple[Any, ...]) -> Pose:
    dtype, kind, axis, block = options
    count = 1 if given.names[1] == "scale" else 2
    way = way_of(given, count, tuple({str(given.dtypes[0]), "f32"}), ZEROS.get(dtype, dtype))
    word = "quantize" + ("_pair" if count == 2 else "_lone" if dtype in PACKED else "") + way
    return pose_of(given, word + limits_of(dtype), "u8" if dtype in PACKED else dtype, count, axis, block)


def _define_quantize(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    dtype, kind, axis, block = options
    count = len(values) // 3
    found = []
    for x, scale, zero in (values[at::count] for at in range(count)):
        scale, zero = _values(x, scale, zero, axis, block, numbers)
        found.append(reference.quantize(x, scale, zero, dtype, kind))
    return found[0] if dtype not in PACKED else reference.pack(*found, *(0.0,) * (2 - count))


def _kind(x: Any) -> str:
    """The type in which floats are divided."""
    if type(x) is np.ndarray:
        return "f64" if x.itemsize == 8 else "f32"
    return "f64" if getattr(getattr(x, "dtype", None), "itemsize", 4) == 8 else "f32"


def _values(x: Any, scale: Any, zero: Any, axis: int | None, block: int, numbers: Any) -> tuple[Any, Any]:
    """Parameters as they broadcast to x."""

    def full(values: Any) -> Any:
        cut, view = cut_of(x.shape, values.shape, axis, block, "")
        return np.broadcast_to(values.reshape(view), cut).reshape(x.shape)

    if scale is None:
        return numbers[0], numbers[1]
    return full(scale), numbers[0] if zero is None else full(zero)


_OWN = ("scale", "zero_point")
_quantize = Primitive("quantize", ("x", *_OWN), _pose_quantize, _define_quantize, dtypes=(*FLOATS, "i32"), others=_OWN)
_PAIRS = ("scale", "odd scale", "zero_point", "odd zero_point")
_quantize_pairs = Primitive(
    "quantize", ("x", "odd x", *_PAIRS), _pose_quantize, _define_quantize, dtypes=(*FLOATS, "i32"), others=_PAIRS
)


def quantize(
    x: Any, scale: Any, zero_point: Any = None, *, axis: int | None = None, block_size: int | None = None,
    dtype: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Quantise floats: ``y = saturate(round(x / scale) + zero_point)``, halves to even.

    Args:
        x: any shape and strides; float64, float32, float16, bfloat16 or int32, the last three divided in float32.
        scale: a positive number; or an array of float32 or of x's dtype: (x.shape[axis],), one for each index of the
            axis; with `block_size` x's shape, the axis' size being that of its blocks, rounded up; or x's shape with 1
            where it broadcasts.
        zero_point: an integer in the range of `dtype`, or an array of it as `scale`; int8 for int4, uint8 for uint4.
            None: 0.
        axis: what the parameters belong to.
        block_size: elements along the axis that share parameters; the last block may be shorter.
        dtype: "int8", "uint8", "int4" or "uint4"; None: that of `zero_point`, uint8 where that has none. Integers of
            4 bits are packed along the last axis, two a byte, the first in the lower half; of an odd number the last
            upper half is 0.
        out: where y goes; it shares no memory with x.

    Returns:
        y, of x's library and shape; of 4 bits uint8, the last axis half as long, rounded up.
        NaN becomes the zero point.

    Raises:
        TypeError: a dtype that there is none, mixed libraries, a zero point that is no integer.
        ValueError: a scale that is not positive and finite, a zero point out of range, parameters whose shapes do not
            fit, blocks of an odd size along the last axis of integers of 4 bits, an `out` of another shape or one that
            overlaps. Elements of arrays of parameters are not looked at.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.quantize(np.float32([-1, 0.25, 2]), 0.5, np.uint8(3))
        array([1, 3, 7], dtype=uint8)
        >>> numbaprims.quantize(np.float32([1, -1, 7]), 1.0, dtype="int4")
        array([241,   7], dtype=uint8)

    References:
        ONNX QuantizeLinear.
    """
    if axis is None and block_size is None and plain(scale, zero_point, dtype):
        name, numbers = kept(_numbers, scale, zero_point, dtype, _kind(x))
        if name not in PACKED:
            return _quantize.run((x, None, None), (name, _kind(x), None, 0), numbers, out)
    if dtype is None:
        dtype = zero_point.dtype if hasattr(zero_point, "dtype") else "uint8"
    name = name_of(dtype)
    given = entered(x, scale, zero_point, axis, block_size, name, _kind(x))
    if not given.block and name not in PACKED:
        return _quantize.run((x, given.scale, given.zero), (name, _kind(x), given.axis, 0), given.numbers, out)
    packed, shape = name in PACKED, tuple(x.shape)
    if packed and not shape:
        raise ValueError(f"x is a {arrays.describe(x)}; what is packed must have a dimension at least")
    made = made_of(x, (*shape[:-1], -(-shape[-1] // 2)) if packed else shape, "u8" if packed else name, out)
    each = 2 if packed and given.axis == len(shape) - 1 else 1
    for place, own in parts_of(shape, given, packed, x):
        taken, to = x[place_of(given.axis, place)], made[place_of(given.axis, place, each)]
        if packed:
            _pack(taken, own, name, to)
        else:
            _quantize.run((taken, own.scale, own.zero), (name, _kind(x), own.axis, own.block), own.numbers, to)
    return made


def _numbers(scale: Any, zero: Any, dtype: Any, kind: str) -> tuple[str, tuple[float, float]]:
    """The result's type, and the numbers of a call without arrays of them."""
    if dtype is None:
        dtype = zero.dtype if hasattr(zero, "dtype") else "uint8"
    name = name_of(dtype)
    return name, (scale_number(scale, "scale", kind), 0.0 if zero is None else zero_number(zero, "zero_point", name))


def _back_numbers(scale: Any, zero: Any, out_dtype: Any, own: str) -> tuple[str, tuple[float, float]]:
    to = _float_of(out_dtype)
    one = scale_number(scale, "scale", _wide(to, own))
    return to, (one, 0.0 if zero is None else zero_number(zero, "zero_point", own))


def _wide(to: str, own: str) -> str:
    """The type in which integers are multiplied."""
    return "f64" if to == "f64" or own == "i32" else "f32"


def _float_of(out_dtype: Any) -> str:
    to = arrays.dtype_name(out_dtype)
    if to not in FLOATS:
        words = ", ".join(LONG_NAMES[each] for each in FLOATS)
        raise TypeError(f"out_dtype is {out_dtype!r}; it must be one of {words}")
    return to


def _pack(x: Any, given: Parameters, name: str, out: Any) -> None:
    """Pairs of elements along the last axis, and the last one of an odd number."""
    n = x.shape[-1]
    pairs = n // 2
    if pairs:
        one, other = given.half(0, pairs, x), given.half(1, pairs, x)
        halves = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
        operands = (*halves, one.scale, other.scale, one.zero, other.zero)
        _quantize_pairs.run(operands, (name, _kind(x), one.axis, one.block), one.numbers, out[..., :pairs])
    if n % 2:
        lone = given.half(n - 1, 1, x)
        _quantize.run(
            (x[..., n - 1 :], lone.scale, lone.zero),
            (name, _kind(x), lone.axis, lone.block),
            lone.numbers,
            out[..., pairs:],
        )


# ---------------------------------------------------------------- dequantize


def _pose_dequantize(given: Given, options: tuple[Any, ...]) -> Pose:
    dtype, part, to, axis, block = options
    x = given.dtypes[0]
    if x != ("u8" if dtype in PACKED else dtype):
        packed = "integers of 4 bits are packed in uint8"
        own = f"dtype is {LONG_NAMES.get(dtype)}; it must be None for x's own, or of what has 4 bits"
        raise TypeError(f"{given.words(0)}; {packed if dtype in PACKED else own}")
    way = way_of(given, 1, ("f32", to), ZEROS.get(dtype, dtype))
    return pose_of(given, f"dequantize{part}{way}{limits_of(dtype)}", to, 1, axis, block)


def _define_dequantize(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    x, scale, zero = values
    dtype, part, to, axis, block = options
    if part:
        x = reference.halves(x, dtype)[part == "_upper"]
    scale, zero = _values(x, scale, zero, axis, block, numbers)
    kind = _wide(to, dtype)
    return reference.dequantize(x, reference.KINDS[kind](scale), zero)


_dequantize = Primitive(
    "dequantize", ("x", *_OWN), _pose_dequantize, _define_dequantize, dtypes=("i8", "u8", "i32"), others=_OWN
)


def dequantize(
    x: Any, scale: Any, zero_point: Any = None, *, axis: int | None = None, block_size: int | None = None,
    dtype: Any = None, length: int | None = None, out_dtype: Any = "float32", out: Any = None,
) -> Any:  # fmt: skip
    """Give quantised integers back as floats: ``y = (x - zero_point) scale``.

    Args:
        x: any shape and strides; int8, uint8 or int32; uint8 that holds pairs of int4 or uint4, see `dtype`.
        scale: a positive number, or an array of float32 or of `out_dtype`, as in `quantize`.
        zero_point: an integer, or an array of them, of x's dtype, int8 for int4. None: 0.
        axis: what the parameters belong to.
        block_size: elements along the axis that share parameters; the last block may be shorter.
        dtype: "int4" or "uint4": what `quantize` packed along the last axis; None: x's own.
        length: elements of the last axis of what is packed; None: twice its bytes.
        out_dtype: "float32", "float64", "float16" or "bfloat16"; the last two are rounded once from float32.
        out: where y goes; it shares no memory with x.

    Returns:
        y, of x's library and shape; of 4 bits the last axis has `length`.

    Raises:
        TypeError: as `quantize`.
        ValueError: as `quantize`; also a length that is not that of the bytes.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.dequantize(np.uint8([1, 3, 7]), 0.5, 3)
        array([-1.,  0.,  2.], dtype=float32)
        >>> numbaprims.dequantize(np.uint8([241, 7]), 1.0, dtype="int4", length=3)
        array([ 1., -1.,  7.], dtype=float32)

    References:
        ONNX DequantizeLinear.
    """
    own = arrays.enter(x, "x")[1]
    if axis is None and block_size is None and dtype is None and length is None and plain(scale, zero_point, out_dtype):
        to, numbers = kept(_back_numbers, scale, zero_point, out_dtype, own)
        return _dequantize.run((x, None, None), (own, "", to, None, 0), numbers, out)
    to = _float_of(out_dtype)
    name = own if dtype is None else name_of(dtype)
    shape = tuple(x.shape)
    if name in PACKED and shape:
        n = 2 * shape[-1] if length is None else integer(length, "length")
        if -(-n // 2) != shape[-1]:
            raise ValueError(
                f"length is {n} and x a {arrays.describe(x)}; its last axis must be half of it, rounded up"
            )
        shape = (*shape[:-1], n)
    elif length is not None or name in PACKED:
        raise ValueError(
            f"x is a {arrays.describe(x)} and dtype {dtype!r}; a length is that of what is packed along an axis"
        )
    given = entered(_Shape(shape), scale, zero_point, index_of(axis, x), block_size, name, _wide(to, own))
    if not given.block and name not in PACKED:
        return _dequantize.run((x, given.scale, given.zero), (name, "", to, given.axis, 0), given.numbers, out)
    made = made_of(x, shape, to, out)
    each = 2 if name in PACKED and given.axis == len(shape) - 1 else 1
    for place, part in parts_of(shape, given, each == 2, x):
        taken, to_part = x[place_of(given.axis, place, each)], made[place_of(given.axis, place)]
        if name in PACKED:
            for start, half in enumerate(("_lower", "_upper")):
                goes = to_part[..., start::2]
                count = goes.shape[-1]
                if count:
                    mine = part.half(start, count, to_part)
                    options = name, half, to, mine.axis, mine.block
                    _dequantize.run((taken[..., :count], mine.scale, mine.zero), options, mine.numbers, goes)
        else:
            _dequantize.run(
                (taken, part.scale, part.zero), (name, "", to, part.axis, part.block), part.numbers, to_part
            )
    return made


class _Shape(NamedTuple):
    """What has a shape."""

    shape: tuple[int, ...]


# ---------------------------------------------------------------- scales from the elements


def _pose_dynamic(given: Given, options: tuple[Any, ...]) -> Pose:
    axis, symmetric, _ = options
    x, dtype = given.storages[0], "i8" if symmetric else "u8"
    axes = tuple(range(x.ndim)) if axis is None else (axis,)
    kept = tuple(1 if at in axes else size for at, size in enumerate(x.shape))
    own = () if axis is None else kept
    kind = "f64" if given.dtypes[0] == "f64" else "f32"
    results = [Result(x.shape, dtype, like=0), Result(own, kind), Result(own, dtype)]
    formula = "dynamic_quantize" + "_symmetric" * symmetric
    views = {"scale": kept, "zero_point": kept}
    return reduction.pose(QuantizeProblem, given, formula, x.shape, axes, results, views)


_dynamic = Primitive(
    "dynamic_quantize", ("x",), _pose_dynamic,
    lambda values, options, _: reference.dynamic_quantize(values[0], *options),
)  # fmt: skip


def dynamic_quantize(x: Any, *, axis: int | None = None, symmetric: bool = False, out: Any = None) -> Any:
    """Quantise floats by the range that they have: ``scale = (max(x, 0) - min(x, 0)) / 255,
    zero_point = round(-min(x, 0) / scale), y = saturate(round(x / scale) + zero_point)``.

    Args:
        x: any shape and strides; float64, float32, float16 or bfloat16, the last two computed in float32.
        axis: what is reduced for a scale; None: all of x, the row's own with -1.
        symmetric: to int8 in -127 ... 127 by ``scale = max |x| / 127``, zero_point 0.
        out: where y goes; it shares no memory with x.

    Returns:
        (y, scale, zero_point): y is uint8, int8 if symmetric, of x's shape; scale float32 (float64 of float64);
        zero_point of y's dtype. With an axis the last two have x's shape with 1 there, as `quantize` and `dequantize`
        take them. Of zeros alone the scale is 1. Where x holds NaN, the scale is NaN and y 0.

    Raises:
        TypeError: a dtype that is none of floats.
        ValueError: an axis that there is none, an `out` of another shape, or one that overlaps x.

    Example:
        >>> import numpy as np, numbaprims
        >>> y, scale, zero_point = numbaprims.dynamic_quantize(np.float32([-51, 0, 204]))
        >>> y, float(scale), int(zero_point)
        (array([  0,  51, 255], dtype=uint8), 1.0, 51)

    References:
        ONNX DynamicQuantizeLinear.
    """
    if symmetric.__class__ is not bool:
        raise TypeError(f"symmetric is {symmetric!r}; it must be True or False")
    return _dynamic.run((x,), (index_of(axis, x), symmetric, _kind(x)), (), out)


# ---------------------------------------------------------------- find and tune

PROBLEMS = problems(quantize, dequantize, dynamic_quantize)
EXAMPLES = {"quantize": example_call}
