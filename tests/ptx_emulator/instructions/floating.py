"""Floating-point arithmetic: f16, bf16, f32, f64, packed pairs, and the approximate functions.

An approximate function is computed exactly and rounded, unless the launch asks for the worst result that the PTX manual
allows (`worst_approximations`), alternately above and below.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import errors
from ..dtypes import FLOATS, NUMPY, PACKED, Array, bf16_to_f32, f32_to_bf16, types_of
from ..machine import Batch, Step
from ..operands import Context
from ..parse import Instruction
from ..registry import instruction
from .fused import fused_multiply_add

Function = Callable[..., Any]


def is_float_type(kind: str) -> bool:
    return kind in FLOATS or kind in ("bf16", "f16x2", "bf16x2", "f32x2")


def flush(value: Any) -> Any:
    """.ftz: subnormal f32 numbers become zeros of the same sign."""
    value = np.asarray(value)
    return np.where(np.abs(value) < np.float32(2.0**-126), np.copysign(np.float32(0), value), value)


def saturate(value: Any) -> Any:
    """.sat: into [0, 1], NaN to 0."""
    value = np.asarray(value)
    return np.clip(np.where(np.isnan(value), value.dtype.type(0), value), value.dtype.type(0), value.dtype.type(1))


def _split(values: Any, part: Any) -> list[Array]:
    halves = np.ascontiguousarray(values).view(part).reshape(-1, 2)
    return [halves[:, 0], halves[:, 1]]


def apply(context: Context, ins: Instruction, function: Function, count: int) -> Step:
    """The step of an instruction that applies `function` to `count` operands of its type."""
    kind = types_of(ins.modifiers)[-1]
    if kind == "f32x2":
        return _apply_packed(context, ins, function, count, "b64", np.float32)
    if kind in PACKED:
        half = np.float16 if kind == "f16x2" else np.uint16
        return _apply_packed(context, ins, _in_bf16(function) if kind == "bf16x2" else function, count, "b32", half)
    gets = [context.read(operand, kind) for operand in ins.operands[1 : 1 + count]]
    put = context.write(ins.operands[0])
    if ins.has("relu"):
        inner = function
        function = lambda *v: _relu(inner(*v))  # noqa: E731
    if kind == "bf16":
        function = _in_bf16(function)
    if ins.has("ftz") and kind == "f32":
        plain = function
        function = lambda *v: flush(plain(*(flush(x) for x in v)))  # noqa: E731
    if ins.has("sat"):
        unlimited = function
        function = lambda *v: saturate(unlimited(*v))  # noqa: E731
    if count == 2:
        first, second = gets
        return lambda batch: put(batch, function(first(batch), second(batch)))
    if count == 3:
        first, second, third = gets
        return lambda batch: put(batch, function(first(batch), second(batch), third(batch)))
    get = gets[0]
    return lambda batch: put(batch, function(get(batch)))


def _relu(value: Any) -> Any:
    return np.where(np.asarray(value) < 0, np.asarray(value).dtype.type(0), value)


def _in_bf16(function: Function) -> Function:
    return lambda *bits: f32_to_bf16(function(*(bf16_to_f32(b) for b in bits)))


def _apply_packed(context: Context, ins: Instruction, function: Function, count: int, whole: str, part: Any) -> Step:
    gets = [context.read(operand, whole) for operand in ins.operands[1 : 1 + count]]
    put = context.write(ins.operands[0])

    def compute(batch: Batch) -> None:
        operands = [_split(batch.row(get(batch)), part) for get in gets]
        result = np.empty((len(batch.lanes), 2), part)
        for index in range(2):
            result[:, index] = function(*(operand[index] for operand in operands))
        put(batch, result.view(NUMPY[whole])[:, 0])

    return compute


def _rounding(ins: Instruction) -> None:
    """Only the default rounding is modelled; .rz, .rm and .rp are refused."""
    if ins.has("rz", "rm", "rp"):
        raise errors.Unsupported(f"directed rounding: {ins.text}")


def binary(context: Context, ins: Instruction, ufunc: Any) -> Step:
    _rounding(ins)
    return apply(context, ins, ufunc, 2)


@instruction("fma")
def fused(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    _rounding(ins)
    scalar = {"bf16": "f32", "f32x2": "f32", "f16x2": "f16", "bf16x2": "f32"}.get(kind, kind)
    return apply(context, ins, fused_multiply_add(scalar), 3)


def divide(context: Context, ins: Instruction) -> Step:
    _rounding(ins)
    if ins.has("approx", "full"):
        return _approximate(context, ins, np.divide, relative=2.0**-22)
    return apply(context, ins, np.divide, 2)


def extreme(context: Context, ins: Instruction) -> Step:
    """A NaN loses against a number, unless .NaN says that it wins; -0 is less than +0."""
    smallest = ins.opcode == "min"
    choose = (np.minimum if smallest else np.maximum) if ins.has("NaN") else (np.fmin if smallest else np.fmax)

    def compute(a: Any, b: Any) -> Any:
        result = choose(a, b)
        signs = np.signbit(a) | np.signbit(b) if smallest else np.signbit(a) & np.signbit(b)
        zero = np.equal(a, 0) & np.equal(b, 0)
        return np.where(zero, np.copysign(np.asarray(result), np.where(signs, -1, 1)), result).astype(result.dtype)

    return apply(context, ins, compute, 2)


def sign(context: Context, ins: Instruction) -> Step:
    """neg and abs of bits: NaNs keep their payload."""
    kind = types_of(ins.modifiers)[-1]
    bits = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}[kind]
    pattern = {"f16x2": 0x80008000, "bf16x2": 0x80008000}.get(kind, 1 << (bits - 1))
    get, put = context.read(ins.operands[1], f"u{bits}"), context.write(ins.operands[0])
    mask = NUMPY[f"u{bits}"](pattern)
    if ins.opcode == "neg":
        return lambda batch: put(batch, get(batch) ^ mask)
    return lambda batch: put(batch, get(batch) & ~mask)


@instruction("copysign")
def _copy_sign(context: Context, ins: Instruction) -> Step:
    return apply(context, ins, lambda a, b: np.copysign(b, a), 2)


@instruction("testp")
def _test(context: Context, ins: Instruction) -> Step:
    kind = types_of(ins.modifiers)[-1]
    tiny = np.finfo(NUMPY[kind]).tiny
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda v: ~np.isnan(v),
        "notanumber": np.isnan,
        "normal": lambda v: np.isfinite(v) & (np.abs(v) >= tiny),
        "subnormal": lambda v: (np.abs(v) < tiny) & np.not_equal(v, 0),
    }
    get, put = context.read(ins.operands[1], kind), context.write(ins.operands[0])
    test = tests[ins.modifiers[0]]
    return lambda batch: put(batch, test(get(batch)))


# name -> (function in float64, greatest relative error of the approximation, greatest absolute one),
# from the tables of the PTX manual for .approx.f32
_FUNCTIONS: dict[str, tuple[Function, float, float]] = {
    "rcp": (lambda x: 1.0 / x, 2.0**-23, 0.0),
    "sqrt": (np.sqrt, 2.0**-23, 0.0),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), 2.0**-22.9, 0.0),
    "ex2": (np.exp2, 2.0**-22, 0.0),
    "lg2": (np.log2, 2.0**-22, 2.0**-22),
    "sin": (np.sin, 0.0, 2.0**-20.5),
    "cos": (np.cos, 0.0, 2.0**-20.5),
    "tanh": (np.tanh, 2.0**-10.987, 0.0),
}


@instruction(*_FUNCTIONS)
def _function(context: Context, ins: Instruction) -> Step:
    function, relative, absolute = _FUNCTIONS[ins.opcode]
    _rounding(ins)
    kind = types_of(ins.modifiers)[-1]

    def exact(value: Any) -> Any:
        value = np.asarray(value)
        return np.asarray(function(value.astype(np.float64))).astype(value.dtype)

    if ins.has("approx") or ins.opcode in ("ex2", "tanh"):
        if kind in ("f16", "f16x2", "bf16", "bf16x2"):
            relative = 2.0**-9.9 if kind.startswith("f16") else 2.0**-7
        return _approximate(context, ins, exact, relative, absolute)
    return apply(context, ins, exact, 1)


def _approximate(
    context: Context, ins: Instruction, function: Function, relative: float, absolute: float = 0.0
) -> Step:
    count = 2 if function is np.divide else 1
    worst: list[bool] = [False]

    def compute(*values: Any) -> Any:
        result = function(*values)
        if not worst[0]:
            return result
        direction = np.where(np.arange(result.size).reshape(result.shape) & 1, 1.0, -1.0)
        wide = result.astype(np.float64)
        moved = wide + direction * np.maximum(np.abs(wide) * relative, absolute)
        return np.where(np.isfinite(wide) & (wide != 0), moved, wide).astype(result.dtype)

    step = apply(context, ins, compute, count)

    def run(batch: Batch) -> None:
        worst[0] = batch.launch.worst_approximations
        step(batch)

    return run
