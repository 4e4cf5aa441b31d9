"""cvt: between integers, floats, halves, bf16, tf32 and packed pairs; cvt.pack of int8."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import errors
from ..dtypes import FLOATS, NUMPY, Array, bf16_to_f32, f32_to_bf16, f32_to_tf32, types_of, width
from ..machine import Batch, Step
from ..operands import Context
from ..parse import Instruction
from ..registry import instruction
from .floating import flush, saturate

_TO_INTEGER = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


def float_to_integer(value: Any, kind: str, mode: str) -> Array:
    """Round, then clamp to the range of the type. NaN gives 0, or where either side has 64 bits the highest bit alone
    (PTX ISA, cvt)."""
    value = np.asarray(value)
    exact = _TO_INTEGER[mode](value.astype(np.float64))
    limits = np.iinfo(NUMPY[kind])
    sign = 1 if limits.min == 0 else -1
    nan = sign * 2.0 ** (limits.bits - 1) if 64 in (value.itemsize * 8, limits.bits) else 0.0
    exact = np.where(np.isnan(exact), nan, exact)
    # float(2^31 - 1) and float(2^64 - 1) round up in places: whatever reaches the limit is the limit
    above, below = exact >= float(limits.max), exact <= float(limits.min)
    inside = np.where(above | below, 0.0, exact).astype(NUMPY[kind])
    return np.where(above, limits.max, np.where(below, limits.min, inside)).astype(NUMPY[kind])


def _round_towards(value: Any, target: Any, mode: str) -> Array:
    """A conversion to a narrower float (or of an integer) with directed rounding, by one step from the nearest."""
    exact = np.asarray(value)
    near = exact.astype(target)
    wide = near.astype(np.float64) if exact.dtype.kind == "f" else near.astype(np.longdouble)
    if mode == "rz":
        wrong = np.abs(wide) > np.abs(exact)
        toward = np.zeros_like(near)
    else:
        wrong = wide > exact if mode == "rm" else wide < exact
        toward = np.full_like(near, -np.inf if mode == "rm" else np.inf)
    return np.where(wrong & ~np.isnan(near), np.nextafter(near, toward), near).astype(target)


@instruction("cvt")
def _convert(context: Context, ins: Instruction) -> Step:
    if ins.modifiers[0] == "pack":
        return _pack_integers(context, ins)
    kinds = types_of(ins.modifiers)
    if len(kinds) != 2:
        raise errors.Unsupported(f"conversion {ins.text}")
    target, source = kinds
    if target in ("f16x2", "bf16x2"):
        return _pack_halves(context, ins, target)
    get, put = context.read(ins.operands[1], source), context.write(ins.operands[0])
    function = _conversion(ins, target, source)
    return lambda batch: put(batch, function(get(batch)))


def _conversion(ins: Instruction, target: str, source: str) -> Callable[[Any], Any]:
    rounding = next((word for word in ins.modifiers if word in ("rz", "rm", "rp")), "rn")
    integral = next((word for word in ins.modifiers if word in _TO_INTEGER), None)
    if target == "tf32":
        return f32_to_tf32
    from_bf16 = source == "bf16"

    def prepare(value: Any) -> Any:
        value = bf16_to_f32(value) if from_bf16 else np.asarray(value)
        return flush(value) if ins.has("ftz") and value.dtype == np.float32 else value

    if target == "bf16":
        if source not in ("f32", "bf16"):
            raise errors.Unsupported(f"conversion {ins.text}")
        relu = ins.has("relu")
        return lambda value: f32_to_bf16(_relu(prepare(value)) if relu else prepare(value), rounding)
    if target in FLOATS:
        return _to_float(ins, prepare, target, source in FLOATS or from_bf16, rounding, integral)
    if source in FLOATS or from_bf16:
        return lambda value: float_to_integer(prepare(value), target, integral or "rzi")
    if ins.has("sat"):
        limits = np.iinfo(NUMPY[target])
        return lambda value: np.clip(np.asarray(value).astype(object), limits.min, limits.max).astype(NUMPY[target])
    return lambda value: np.asarray(value).astype(NUMPY[target])


def _to_float(
    ins: Instruction,
    prepare: Callable[[Any], Any],
    target: str,
    between_floats: bool,
    rounding: str,
    integral: str | None,
) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        value = prepare(value)
        if between_floats and integral:
            value = _TO_INTEGER[integral](value)
        directed = rounding != "rn" and not (between_floats and value.dtype.itemsize <= width(target))
        result = _round_towards(value, NUMPY[target], rounding) if directed else value.astype(NUMPY[target])
        if ins.has("relu"):
            result = _relu(result)
        if ins.has("ftz") and target == "f32":
            result = flush(result)
        return saturate(result) if ins.has("sat") else result

    return convert


def _relu(value: Any) -> Any:
    return np.where(value < 0, value.dtype.type(0), value)


def _pack_halves(context: Context, ins: Instruction, target: str) -> Step:
    """cvt.rn.bf16x2.f32 d, high, low."""
    high, low = (context.read(operand, "f32") for operand in ins.operands[1:3])
    put, relu = context.write(ins.operands[0]), ins.has("relu")
    rounding = "rz" if ins.has("rz") else "rn"

    def half(value: Any) -> Any:
        value = _relu(np.asarray(value)) if relu else np.asarray(value)
        if target == "bf16x2":
            return f32_to_bf16(value, rounding)
        result = value.astype(np.float16) if rounding == "rn" else _round_towards(value, np.float16, "rz")
        return np.ascontiguousarray(result).view(np.uint16).reshape(result.shape)

    def pack(batch: Batch) -> None:
        upper, lower = half(high(batch)).astype(np.uint32), half(low(batch)).astype(np.uint32)
        put(batch, upper << np.uint32(16) | lower)

    return pack


def _pack_integers(context: Context, ins: Instruction) -> Step:
    """cvt.pack.sat.s8.s32.b32 d, a, b, c: the two saturated bytes in the low half, c's low half above them."""
    kind = types_of(ins.modifiers)[0]
    if width(kind) not in (1, 2):
        raise errors.Unsupported(f"conversion {ins.text}")
    bits, limits = 8 * width(kind), np.iinfo(NUMPY[kind])
    gets = [context.read(operand, "s32") for operand in ins.operands[1:3]]
    upper = context.read(ins.operands[3], "u32") if len(ins.operands) > 3 else None
    put = context.write(ins.operands[0])
    mask = np.uint32((1 << bits) - 1)

    def pack(batch: Batch) -> None:
        first, second = (np.clip(get(batch), limits.min, limits.max).astype(np.uint32) & mask for get in gets)
        pair = first << np.uint32(bits) | second
        if upper is not None:
            pair = pair | np.asarray(upper(batch)) << np.uint32(2 * bits)
        put(batch, pair)

    return pack
