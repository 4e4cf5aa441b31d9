"""Floating-point instructions and conversions of the emulator against exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from ptx_emulator.dtypes import NUMPY, bf16_to_f32, f32_to_bf16, f32_to_tf32
from ptx_emulator.snippet import run

# type -> (bits of the significand, least exponent of a subnormal, greatest finite number)
FORMATS = {
    "f16": (11, -24, 65504.0),
    "bf16": (8, -133, float(bf16_to_f32(np.array([0x7F7F]))[0])),
    "f32": (24, -149, float(np.finfo(np.float32).max)),
    "f64": (53, -1074, float(np.finfo(np.float64).max)),
}


def rounded(exact: Fraction, kind: str, mode: str = "rn") -> float:
    """The nearest number of the format, ties to even; or the nearest one towards zero."""
    digits, least, greatest = FORMATS[kind]
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - digits + 1, least)
    count = size / unit
    whole = math.floor(count)
    if mode == "rn" and (count - whole > Fraction(1, 2) or (count - whole == Fraction(1, 2) and whole & 1)):
        whole += 1
    value = whole * unit
    if value > Fraction(greatest):
        value = Fraction(greatest) if mode == "rz" else None
    result = math.inf if value is None else float(value)
    return math.copysign(result, exact)


def draw(rng, kind, count=256, spread=8):
    """Numbers of any size, some subnormal, as floats that the format has."""
    numbers = rng.standard_normal(count) * np.exp2(rng.integers(-spread, spread + 1, count))
    numbers[:6] = [0.0, 1.0, -1.0, 2.0**-24, 1 + 2.0**-10, -3.0]
    if kind == "bf16":
        return bf16_to_f32(f32_to_bf16(numbers)).astype(float)
    return numbers.astype(NUMPY[kind]).astype(float)


def bits(values, kind):
    return f32_to_bf16(np.asarray(values, np.float32)) if kind == "bf16" else np.asarray(values, NUMPY[kind])


def floats(values, kind):
    return bf16_to_f32(values).astype(float) if kind == "bf16" else np.asarray(values, float)


def check(code, kind, operands, reference):
    (got,) = run(code, [(kind, bits(values, kind)) for values in operands], [kind])
    want = [reference(*(Fraction(x) for x in row)) for row in zip(*operands, strict=True)]
    np.testing.assert_array_equal(floats(got, kind), [rounded(value, kind) for value in want])


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_arithmetic(kind, rng):
    a, b, c = (draw(rng, kind) for _ in range(3))
    check(f"add.rn.{kind} %o0, %i0, %i1;", kind, (a, b[::-1]), lambda a, b: a + b)
    check(f"sub.rn.{kind} %o0, %i0, %i1;", kind, (a, b[::-1]), lambda a, b: a - b)
    check(f"mul.rn.{kind} %o0, %i0, %i1;", kind, (a, b[::-1]), lambda a, b: a * b)
    if kind != "bf16":  # there the product and the sum are rounded to f32 before bf16, once in 2^16 differently
        check(f"fma.rn.{kind} %o0, %i0, %i1, %i2;", kind, (a, b[::-1], c), lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_fused_multiply_add_rounds_once(kind, rng):
    """c just off the middle of two neighbours of a * b: rounding twice would give the wrong one."""
    digits = FORMATS[kind][0]
    a = np.full(32, 1 + 2.0 ** (1 - digits))
    b = np.full(32, 1.0)
    c = 2.0**-digits + np.where(np.arange(32) & 1, 1, -1) * 2.0 ** -(digits + 20 + np.arange(32) % 8)
    c = c.astype(NUMPY[kind]).astype(float)
    check(f"fma.rn.{kind} %o0, %i0, %i1, %i2;", kind, (a, b, c), lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_and_roots(kind, rng):
    a, b = draw(rng, kind), draw(rng, kind)
    b[b == 0] = 3.0
    check(f"div.rn.{kind} %o0, %i0, %i1;", kind, (a, b[::-1]), lambda a, b: a / b)
    check(f"rcp.rn.{kind} %o0, %i0;", kind, (b,), lambda b: 1 / b)
    x = np.abs(a).astype(NUMPY[kind])
    (got,) = run(f"sqrt.rn.{kind} %o0, %i0;", [(kind, x)], [kind])
    np.testing.assert_array_equal(got, np.sqrt(x))


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40]
PAIRS = [(a, b) for a in SPECIAL for b in SPECIAL]


def test_special_values_of_extremes():
    a, b = zip(*PAIRS, strict=True)
    for name, function, quiet in (("min", np.fmin, np.minimum), ("max", np.fmax, np.maximum)):
        inputs = [("f32", a), ("f32", b)]
        (got,) = run(f"{name}.f32 %o0, %i0, %i1;", inputs, ["f32"])
        np.testing.assert_array_equal(got, function(np.float32(a), np.float32(b)))
        (got,) = run(f"{name}.NaN.f32 %o0, %i0, %i1;", inputs, ["f32"])
        np.testing.assert_array_equal(got, quiet(np.float32(a), np.float32(b)))
    # -0 is less than +0
    (low, high) = run("min.f32 %o0, %i0, %i1; max.f32 %o1, %i0, %i1;", [("f32", [0.0]), ("f32", [-0.0])], ["f32"] * 2)
    assert np.signbit(low[0]) and not np.signbit(high[0])


ORDERED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}


def test_comparisons_with_nan():
    a, b = zip(*PAIRS, strict=True)
    for name, symbol in ORDERED.items():
        for suffix in ("", "u"):
            code = f"setp.{name}{suffix}.f32 %p0, %i0, %i1; selp.u32 %o0, 1, 0, %p0;"
            (got,) = run(code, [("f32", a), ("f32", b)], ["u32"])
            want = [
                bool(suffix) if math.isnan(x) or math.isnan(y) else eval(f"x {symbol} y", {}, {"x": x, "y": y})
                for x, y in zip(np.float32(a), np.float32(b), strict=True)
            ]
            np.testing.assert_array_equal(got, want)
    for name, on_nan in (("ne", False), ("neu", True)):
        (got,) = run(f"setp.{name}.f32 %p0, %i0, %i1; selp.u32 %o0, 1, 0, %p0;", [("f32", a), ("f32", b)], ["u32"])
        nan = [math.isnan(x) or math.isnan(y) for x, y in PAIRS]
        want = [on_nan if n else np.float32(x) != np.float32(y) for n, (x, y) in zip(nan, PAIRS, strict=True)]
        np.testing.assert_array_equal(got, want)
    (got,) = run("setp.nan.f32 %p0, %i0, %i1; selp.u32 %o0, 1, 0, %p0;", [("f32", a), ("f32", b)], ["u32"])
    np.testing.assert_array_equal(got, [math.isnan(x) or math.isnan(y) for x, y in PAIRS])


def test_sign_instructions_keep_nan_payloads():
    raw = np.array([0x7FC12345, 0xFFC12345, 0x80000000, 0x3F800000], np.uint32)
    negated, absolute = run("neg.f32 %o0, %i0; abs.f32 %o1, %i0;", [("f32", raw.view(np.float32))], ["f32", "f32"])
    np.testing.assert_array_equal(negated.view(np.uint32), raw ^ 0x80000000)
    np.testing.assert_array_equal(absolute.view(np.uint32), raw & 0x7FFFFFFF)


def test_flush_and_saturation():
    tiny, values = np.float32(1e-40), np.float32([1e-40, -1e-40, 2.0, -2.0, 0.25, np.nan])
    flushed, kept = run(
        "mul.ftz.f32 %o0, %i0, 0f3F800000; mul.f32 %o1, %i0, 0f3F800000;", [("f32", values)], ["f32", "f32"]
    )
    np.testing.assert_array_equal(flushed, np.where(np.abs(values) < 1e-38, 0, values))
    assert kept[0] == tiny and np.signbit(flushed[1])
    (limited,) = run("add.sat.f32 %o0, %i0, 0f00000000;", [("f32", values)], ["f32"])
    np.testing.assert_array_equal(limited, [tiny, 0, 1, 0, 0.25, 0])


def test_packed_halves(rng):
    for kind, packed in (("f16", "f16x2"), ("bf16", "bf16x2")):
        pair = [[bits(draw(rng, kind), kind).view(np.uint16) for _ in range(2)] for _ in range(2)]
        words = [low.astype(np.uint32) | high.astype(np.uint32) << 16 for low, high in pair]
        (got,) = run(f"add.{packed} %o0, %i0, %i1;", [("u32", words[0]), ("u32", words[1])], ["u32"])
        for half in range(2):
            single = [("b16" if kind == "bf16" else "f16", pair[n][half].view(NUMPY[kind])) for n in range(2)]
            (want,) = run(f"add.{kind} %o0, %i0, %i1;", single, [single[0][0]])
            np.testing.assert_array_equal((got >> 16 * half).astype(np.uint16), want.view(np.uint16))


def test_narrowing_conversions(rng):
    values = np.concatenate([draw(rng, "f32", 250, 30), np.float32([65504, 65520, 65519.9, 1e-7, 3e38, -3.39e38])])
    values = values.astype(np.float32)
    for target in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            (got,) = run(f"cvt.{mode}.{target}.f32 %o0, %i0;", [("f32", values)], [target])
            want = [rounded(Fraction(float(x)), target, mode) for x in values]
            np.testing.assert_array_equal(floats(got, target), want, err_msg=f"{target} {mode}")
    (got,) = run("cvt.rn.f32.f64 %o0, %i0;", [("f64", values.astype(float) * (1 + 2.0**-25))], ["f32"])
    want = [rounded(Fraction(float(x) * (1 + 2.0**-25)), "f32") for x in values]
    np.testing.assert_array_equal(got.astype(float), want)
    low, high = values, values[::-1]
    (got,) = run("cvt.rn.bf16x2.f32 %o0, %i0, %i1;", [("f32", high), ("f32", low)], ["u32"])
    np.testing.assert_array_equal(got, f32_to_bf16(high).astype(np.uint32) << 16 | f32_to_bf16(low))


def test_widening_conversions():
    every = np.arange(1 << 16, dtype=np.uint16)
    (got,) = run("cvt.f32.f16 %o0, %i0;", [("f16", every.view(np.float16))], ["f32"])
    np.testing.assert_array_equal(got, every.view(np.float16).astype(np.float32))
    (got,) = run("cvt.f32.bf16 %o0, %i0;", [("b16", every)], ["f32"])
    np.testing.assert_array_equal(got, (every.astype(np.uint32) << 16).view(np.float32))


def test_tf32_rounds_ties_away():
    values = np.float32([1.0, 1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-23, -(1 + 2.0**-11), np.inf])
    (got,) = run("cvt.rna.tf32.f32 %o0, %i0;", [("f32", values)], ["b32"])
    np.testing.assert_array_equal(got.view(np.float32), [1, 1 + 2.0**-10, 1, -(1 + 2.0**-10), np.inf])
    np.testing.assert_array_equal(got, f32_to_tf32(values))


MODES = {"rzi": math.trunc, "rni": round, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("target", ["s8", "u8", "s32", "u32", "s64", "u64"])
def test_float_to_integer(target, rng):
    values = np.concatenate([draw(rng, "f32", 252, 40), [0.5, 1.5, -2.5, 3e38]]).astype(np.float32)
    limits = np.iinfo(NUMPY[target])
    for mode, function in MODES.items():
        (got,) = run(f"cvt.{mode}.{target}.f32 %o0, %i0;", [("f32", values)], [target])
        want = [min(max(function(float(x)), limits.min), limits.max) for x in values]
        np.testing.assert_array_equal(got, np.array(want, NUMPY[target]))
    (got,) = run(f"cvt.rzi.{target}.f32 %o0, %i0;", [("f32", [np.nan, np.inf])], [target])
    highest = {"s64": limits.min, "u64": 2**63}.get(target, 0)
    assert list(got) == [highest, limits.max]
    (got,) = run(f"cvt.rzi.{target}.f64 %o0, %i0;", [("f64", [np.nan, np.inf])], [target])
    assert list(got) == [limits.min or 2 ** (limits.bits - 1), limits.max]  # of a double: the highest bit alone


@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
def test_integer_to_float(source, rng):
    raw = [int.from_bytes(rng.bytes(8), "little") >> int(rng.integers(1, 40)) for _ in range(256)]
    values = np.array(raw, np.uint64).astype(NUMPY[source])
    for target in ("f32", "f64"):
        for mode in ("rn", "rz"):
            (got,) = run(f"cvt.{mode}.{target}.{source} %o0, %i0;", [(source, values)], [target])
            want = [rounded(Fraction(int(x)), target, mode) for x in values]
            np.testing.assert_array_equal(got.astype(float), want, err_msg=f"{target} {mode}")


# name -> (function, relative error, absolute error) that the PTX manual allows: whichever is more
APPROXIMATE = {
    "ex2.approx.ftz": (np.exp2, 2.0**-22, 0),
    "lg2.approx": (np.log2, 2.0**-22, 2.0**-22),
    "rcp.approx.ftz": (lambda x: 1 / x, 2.0**-23, 0),
    "sqrt.approx": (np.sqrt, 2.0**-23, 0),
    "rsqrt.approx": (lambda x: 1 / np.sqrt(x), 2.0**-22.9, 0),
    "sin.approx": (np.sin, 0, 2.0**-20.5),
    "cos.approx": (np.cos, 0, 2.0**-20.5),
    "tanh.approx": (np.tanh, 2.0**-10.987, 0),
}


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions(name, rng):
    """Exact and rounded by default; on demand as wrong as a GPU may be, which is what tolerances must survive."""
    function, relative, absolute = APPROXIMATE[name]
    x = rng.uniform(0.1, 3, 256).astype(np.float32)
    want = function(x.astype(float))
    (best,) = run(f"{name}.f32 %o0, %i0;", [("f32", x)], ["f32"])
    np.testing.assert_allclose(best, want, rtol=2.0**-24, atol=0)
    (worst,) = run(f"{name}.f32 %o0, %i0;", [("f32", x)], ["f32"], worst_approximations=True)
    allowed = np.maximum(np.abs(want) * relative, absolute)
    error = np.abs(worst - want)
    assert np.all(error <= allowed + np.abs(want) * 2.0**-23)
    assert np.all(error > 0) and np.median(error / allowed) > 0.5
