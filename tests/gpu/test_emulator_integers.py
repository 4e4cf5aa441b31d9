"""Integer and bit instructions of the emulator against Python's unbounded integers."""

import numpy as np
import pytest
from ptx_emulator.dtypes import NUMPY
from ptx_emulator.snippet import run


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def draw(rng: np.random.Generator, kind: str, count: int = 256) -> list[int]:
    """Edges, small numbers and random bits."""
    low, high = limits(kind)
    edges = [low, low + 1, -1, 0, 1, 2, 31, 32, 33, high - 1, high]
    edges = [value for value in edges if low <= value <= high]
    bits = int(kind[1:])
    wild = [int.from_bytes(rng.bytes(bits // 8), "little", signed=kind[0] == "s") for _ in range(count)]
    some = [value >> int(rng.integers(bits)) for value in wild]
    return (edges + some)[:count]


def wrap(value: int, kind: str) -> int:
    low, high = limits(kind)
    return (value - low) % (high - low + 1) + low


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def check(code, inputs, output, reference):
    """`inputs`: (type, values); every element against `reference` of the same Python integers."""
    (got,) = run(code, inputs, [output])
    want = [wrap(reference(*row), output) for row in zip(*(values for _, values in inputs), strict=True)]
    np.testing.assert_array_equal(got, np.array(want, NUMPY[output]))


BINARY = {
    "add": lambda a, b, k: a + b,
    "sub": lambda a, b, k: a - b,
    "mul.lo": lambda a, b, k: a * b,
    "mul.hi": lambda a, b, k: (a * b) >> int(k[1:]),
    "min": lambda a, b, k: min(a, b),
    "max": lambda a, b, k: max(a, b),
}


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, kind, rng):
    a, b = draw(rng, kind), draw(rng, kind)[::-1]
    check(f"{name}.{kind} %o0, %i0, %i1;", [(kind, a), (kind, b)], kind, lambda a, b: BINARY[name](a, b, kind))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_division(kind, rng):
    a, b = draw(rng, kind), [value or 1 for value in draw(rng, kind)[::-1]]
    a, b = zip(*((x, y) for x, y in zip(a, b, strict=True) if (x, y) != (limits(kind)[0], -1)), strict=True)
    a, b = list(a) + [7] * (256 - len(a)), list(b) + [2] * (256 - len(b))
    check(f"div.{kind} %o0, %i0, %i1;", [(kind, a), (kind, b)], kind, truncated)
    check(f"rem.{kind} %o0, %i0, %i1;", [(kind, a), (kind, b)], kind, lambda a, b: a - truncated(a, b) * b)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32"])
def test_wide_products(kind, rng):
    wide = f"{kind[0]}{2 * int(kind[1:])}"
    a, b, c = draw(rng, kind), draw(rng, kind)[::-1], draw(rng, wide)
    check(f"mul.wide.{kind} %o0, %i0, %i1;", [(kind, a), (kind, b)], wide, lambda a, b: a * b)
    triple = [(kind, a), (kind, b), (wide, c)]
    check(f"mad.wide.{kind} %o0, %i0, %i1, %i2;", triple, wide, lambda a, b, c: a * b + c)
    c = draw(rng, kind)
    check(f"mad.lo.{kind} %o0, %i0, %i1, %i2;", [(kind, a), (kind, b), (kind, c)], kind, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", ["s32", "s64"])
def test_sign(kind, rng):
    a = draw(rng, kind)
    check(f"neg.{kind} %o0, %i0;", [(kind, a)], kind, lambda a: -a)
    check(f"abs.{kind} %o0, %i0;", [(kind, a)], kind, abs)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic_and_shifts(bits, rng):
    u, s = f"u{bits}", f"s{bits}"
    a, b = draw(rng, u), draw(rng, u)[::-1]
    for name, reference in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)):
        check(f"{name}.b{bits} %o0, %i0, %i1;", [(u, a), (u, b)], u, reference)
    check(f"not.b{bits} %o0, %i0;", [(u, a)], u, lambda a: ~a)
    count = [int(n) for n in rng.integers(0, bits + 9, 256)]
    check(f"shl.b{bits} %o0, %i0, %i1;", [(u, a), ("u32", count)], u, lambda a, n: a << n)
    check(f"shr.u{bits} %o0, %i0, %i1;", [(u, a), ("u32", count)], u, lambda a, n: a >> n)
    check(f"shr.s{bits} %o0, %i0, %i1;", [(s, draw(rng, s)), ("u32", count)], s, lambda a, n: a >> n)
    check(f"shl.b{bits} %o0, %i0, {bits - 3};", [(u, a)], u, lambda a: a << (bits - 3))


def test_funnel_shift(rng):
    low, high = draw(rng, "u32"), draw(rng, "u32")[::-1]
    count = [int(n) for n in rng.integers(0, 64, 256)]
    inputs = [("u32", low), ("u32", high), ("u32", count)]
    check("shf.l.wrap.b32 %o0, %i0, %i1, %i2;", inputs, "u32", lambda a, b, n: ((b << 32 | a) << (n & 31)) >> 32)
    check("shf.r.wrap.b32 %o0, %i0, %i1, %i2;", inputs, "u32", lambda a, b, n: (b << 32 | a) >> (n & 31))
    check("shf.r.clamp.b32 %o0, %i0, %i1, %i2;", inputs, "u32", lambda a, b, n: (b << 32 | a) >> min(n, 32))


def extract(value: int, position: int, length: int, kind: str) -> int:
    """The definition in the PTX manual, bit by bit."""
    bits = int(kind[1:])
    top = bits - 1
    sign = 0 if kind[0] == "u" or length == 0 else value >> min(position + length - 1, top) & 1
    return sum(
        ((value >> (position + i) & 1) if i < length and position + i <= top else sign) << i for i in range(bits)
    )


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind, rng):
    bits = int(kind[1:])
    unsigned = f"u{bits}"
    a = draw(rng, unsigned)
    position = [int(n) for n in rng.integers(0, bits + 4, 256)]
    length = [int(n) for n in rng.integers(0, bits + 4, 256)]
    inputs = [(unsigned, a), ("u32", position), ("u32", length)]
    check(f"bfe.{kind} %o0, %i0, %i1, %i2;", inputs, unsigned, lambda a, p, n: extract(a, p, n, kind))

    def insert(field, base, position, length):
        mask = ((1 << length) - 1) << position
        return base & ~mask | (field << position) & mask

    inputs = [(unsigned, draw(rng, unsigned)), *inputs]
    check(f"bfi.b{bits} %o0, %i0, %i1, %i2, %i3;", inputs, unsigned, insert)


@pytest.mark.parametrize("bits", [32, 64])
def test_counting(bits, rng):
    kind = f"u{bits}"
    a = draw(rng, kind)
    check(f"popc.b{bits} %o0, %i0;", [(kind, a)], "u32", lambda a: bin(a).count("1"))
    check(f"clz.b{bits} %o0, %i0;", [(kind, a)], "u32", lambda a: bits - a.bit_length())
    check(f"brev.b{bits} %o0, %i0;", [(kind, a)], kind, lambda a: int(f"{a:0{bits}b}"[::-1], 2))
    check(f"bfind.{kind} %o0, %i0;", [(kind, a)], "u32", lambda a: a.bit_length() - 1)
    signed = draw(rng, f"s{bits}")
    find = f"bfind.s{bits} %o0, %i0;"
    check(find, [(f"s{bits}", signed)], "u32", lambda a: (~a if a < 0 else a).bit_length() - 1)


def test_three_input_logic(rng):
    a, b, c = (draw(rng, "u32") for _ in range(3))
    inputs = [("u32", a), ("u32", b[::-1]), ("u32", c)]
    check("lop3.b32 %o0, %i0, %i1, %i2, 0x96;", inputs, "u32", lambda a, b, c: a ^ b ^ c)
    check("lop3.b32 %o0, %i0, %i1, %i2, 0xca;", inputs, "u32", lambda a, b, c: (a & b) | (~a & c))


def test_byte_permutation(rng):
    a, b, selector = (draw(rng, "u32") for _ in range(3))

    def permute(a, b, selector):
        source = (b << 32 | a).to_bytes(8, "little")
        result = []
        for index in range(4):
            nibble = selector >> 4 * index & 15
            byte = source[nibble & 7]
            result.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
        return int.from_bytes(bytes(result), "little")

    check("prmt.b32 %o0, %i0, %i1, %i2;", [("u32", a), ("u32", b), ("u32", selector)], "u32", permute)


@pytest.mark.parametrize("kinds", ["s32.s32", "u32.u32", "s32.u32", "u32.s32"])
def test_byte_dot_products(kinds, rng):
    first, second = (kind == "s32" for kind in kinds.split("."))
    a, b, c = draw(rng, "u32"), draw(rng, "u32")[::-1], draw(rng, "u32")

    def parts(value, size, signed):
        raw = value.to_bytes(4, "little")
        return [int.from_bytes(raw[i : i + size], "little", signed=signed) for i in range(0, 4, size)]

    def dot(a, b, c):
        return c + sum(x * y for x, y in zip(parts(a, 1, first), parts(b, 1, second), strict=True))

    inputs = [("u32", a), ("u32", b), ("u32", c)]
    check(f"dp4a.{kinds} %o0, %i0, %i1, %i2;", inputs, "u32", dot)

    def dot_high(a, b, c):
        return c + sum(x * y for x, y in zip(parts(a, 2, first), parts(b, 1, second)[2:], strict=True))

    check(f"dp2a.hi.{kinds} %o0, %i0, %i1, %i2;", inputs, "u32", dot_high)


def test_saturating_sums(rng):
    a, b = draw(rng, "s32"), draw(rng, "s32")[::-1]
    low, high = limits("s32")
    check("add.sat.s32 %o0, %i0, %i1;", [("s32", a), ("s32", b)], "s32", lambda a, b: min(max(a + b, low), high))


TESTS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "s16"])
def test_comparisons(kind, rng):
    a = draw(rng, kind)
    b = [x if index % 3 else y for index, (x, y) in enumerate(zip(a, draw(rng, kind)[::-1], strict=True))]
    for name, symbol in TESTS.items():
        code = f"setp.{name}.{kind} %p1, %i0, %i1; selp.u32 %o0, 1, 0, %p1;"
        check(code, [(kind, a), (kind, b)], "u32", eval(f"lambda a, b: int(a {symbol} b)"))
    code = f"setp.lt.{kind} %p0, %i0, 5; setp.gt.or.{kind} %p1|%p2, %i0, %i1, %p0; selp.u32 %o0, 1, 0, %p1;"
    check(code, [(kind, a), (kind, b)], "u32", lambda a, b: int(a > b or a < 5))
    code = f"setp.lt.{kind} %p0, %i0, 5; setp.gt.or.{kind} %p1|%p2, %i0, %i1, %p0; selp.u32 %o0, 1, 0, %p2;"
    check(code, [(kind, a), (kind, b)], "u32", lambda a, b: int(not a > b or a < 5))
    check(f"set.lt.u32.{kind} %o0, %i0, %i1;", [(kind, a), (kind, b)], "u32", lambda a, b: 0xFFFFFFFF * (a < b))


@pytest.mark.parametrize("source", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_integer_conversions(source, target, rng):
    a = draw(rng, source)
    check(f"cvt.{target}.{source} %o0, %i0;", [(source, a)], target, lambda a: a)
    low, high = limits(target)
    check(f"cvt.sat.{target}.{source} %o0, %i0;", [(source, a)], target, lambda a: min(max(a, low), high))


def test_packing_and_unpacking(rng):
    a, b = draw(rng, "u32"), draw(rng, "u32")[::-1]
    check("mov.b64 %o0, {%i0, %i1};", [("u32", a), ("u32", b)], "u64", lambda a, b: b << 32 | a)
    check("mov.b32 {%h0, %h1}, %i0; mov.b32 %o0, {%h1, %h0};", [("u32", a)], "u32", lambda a: a >> 16 | a << 16)
    code = "mov.b64 {%t0, %t1}, %i0; sub.u32 %o0, %t1, %t0;"
    check(code, [("u64", draw(rng, "u64"))], "u32", lambda a: (a >> 32) - a)


def test_saturating_pack(rng):
    a, b, c = draw(rng, "s32"), draw(rng, "s32")[::-1], draw(rng, "u32")

    def pack(a, b, c):
        a, b = (min(max(x, -128), 127) & 0xFF for x in (a, b))
        return c << 16 | a << 8 | b

    check("cvt.pack.sat.s8.s32.b32 %o0, %i0, %i1, %i2;", [("s32", a), ("s32", b), ("u32", c)], "u32", pack)


def test_predication():
    values = np.arange(256)
    code = "setp.gt.u32 %p0, %i0, 100; mov.u32 %o0, 1; @%p0 mov.u32 %o0, 2; @!%p0 add.u32 %o0, %o0, 10;"
    (got,) = run(code, [("u32", values)], ["u32"])
    np.testing.assert_array_equal(got, np.where(values > 100, 2, 11))
