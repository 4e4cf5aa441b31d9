"""Every vector operation against NumPy, for every element type, at the width of this target.

`test_widths` runs the files test_simd*.py again for AVX2 and SSE.  Operations are written as they stand in kernels:
one kernel for each element type holds them all, so that compiling stays short.
"""

import importlib.util
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from numbaprims.cpu import simd, target
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import Arguments, lanes, load_rows, store_rows, transpose

ROOT = Path(__file__).resolve().parents[2]
FLOATS, SIGNED, UNSIGNED = ("f32", "f64"), ("i8", "i16", "i32", "i64"), ("u8", "u16", "u32", "u64")
ARGS = Arguments(arrays=("out", "a", "b", "c"), ints=("n",))
WIDTHS = {
    "avx2": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""},
    "sse": {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""},
}


def numpy_type(elem):
    return np.dtype({"f": "f", "i": "i", "u": "u"}[elem[0]] + str(int(elem[1:]) // 8))


def run(kernel, *arrays, ints=()):
    """Call a range kernel on arrays, as the drivers do."""
    import ctypes

    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [array.ctypes.data for array in arrays]
    words[16 : 16 + len(ints)] = ints
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)
    function(words.ctypes.data, 0, 0, 1)


# ------------------------------------------------------------------------------------------------- operations


def nearest(exact, kind):
    """A fraction rounded once, to nearest even."""
    first = kind(exact.numerator / exact.denominator)
    near = [first, np.nextafter(first, kind(-np.inf)), np.nextafter(first, kind(np.inf))]
    bits = f"u{first.itemsize}"
    return min(
        (v for v in near if np.isfinite(v)), key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(bits)) & 1)
    )


def fused(sign_product, sign_c):
    def reference(a, b, c):
        if not target.current().has_fma:
            return np.where(sign_product < 0, -a, a) * b + np.where(sign_c < 0, -c, c)
        wide = [v.astype(np.longdouble) for v in (a, b, c)]
        plain = (sign_product * wide[0] * wide[1] + sign_c * wide[2]).astype(a.dtype)
        finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
        largest = Fraction(float(np.finfo(a.dtype).max))
        for at in zip(*np.nonzero(finite), strict=True):
            x, y, z = (Fraction(float(v[at])) for v in (a, b, c))
            exact = sign_product * x * y + sign_c * z
            if exact and abs(exact) <= largest:  # the sign of a zero is the plain one's
                plain[at] = nearest(exact, a.dtype.type)
        return plain

    return reference


def smaller(a, b):
    """np.minimum, with -0 below +0."""
    return np.where((a == b) & np.signbit(a), a, np.minimum(a, b)) if a.dtype.kind == "f" else np.minimum(a, b)


def larger(a, b):
    """np.maximum, with +0 above -0."""
    return -smaller(-a, -b) if a.dtype.kind == "f" else np.maximum(a, b)


def tree(combine):
    def reference(a, b, c):
        while a.shape[1] > 1:
            half = a.shape[1] // 2
            a = combine(a[:, :half], a[:, half:])
        return a

    return reference


def rows_of(a):
    return np.arange(len(a))[:, None]


def lane_of(a):
    return np.arange(a.shape[1])[None, :]


def inserted(a, b, c):
    at = rows_of(a) % a.shape[1] == lane_of(a)
    return np.where(at, np.take_along_axis(b, rows_of(a) % a.shape[1], 1), a)


def interleave(a, b):
    return np.stack([a, b], 2).reshape(len(a), -1)


def split(a):
    return np.split(a, 2, 1)


COMMON = {
    "a + b": lambda a, b, c: a + b,
    "a - b": lambda a, b, c: a - b,
    "a * b": lambda a, b, c: a * b,
    "-a": lambda a, b, c: -a,
    "a + 3": lambda a, b, c: a + a.dtype.type(3),
    "3 - a": lambda a, b, c: a.dtype.type(3) - a,
    "t * a": lambda a, b, c: rows_of(a).astype(a.dtype) * a,
    "select(a == b, one, zero)": lambda a, b, c: a == b,
    "select(a != b, one, zero)": lambda a, b, c: a != b,
    "select(a < b, one, zero)": lambda a, b, c: a < b,
    "select(a <= b, one, zero)": lambda a, b, c: a <= b,
    "select(a > b, one, zero)": lambda a, b, c: a > b,
    "select(a >= b, one, zero)": lambda a, b, c: a >= b,
    "select(a > 1, a, 1)": lambda a, b, c: np.where(a > 1, a, a.dtype.type(1)),
    "select(0 < a, 0, a)": lambda a, b, c: np.where(a > 0, a.dtype.type(0), a),
    "select((a < b) & (b < c), a, b)": lambda a, b, c: np.where((a < b) & (b < c), a, b),
    "select((a < b) | (b < c), a, b)": lambda a, b, c: np.where((a < b) | (b < c), a, b),
    "select((a < b) ^ (b < c), a, b)": lambda a, b, c: np.where((a < b) ^ (b < c), a, b),
    "select(~(a < b), a, b)": lambda a, b, c: np.where(a < b, b, a),
    "select(first_lanes(t - 1, W), a, b)": lambda a, b, c: np.where(lane_of(a) < rows_of(a) - 1, a, b),
    "select(first_lanes(W * any_lane(a == b), W), one, zero)": lambda a, b, c: (a == b).any(1, keepdims=True),
    "select(first_lanes(W * all_lanes(a <= b), W), one, zero)": lambda a, b, c: (a <= b).all(1, keepdims=True),
    "select(first_lanes(W * all_lanes(a <= a), W), one, zero)": lambda a, b, c: (a <= a).all(1, keepdims=True),
    "minimum(a, b)": lambda a, b, c: smaller(a, b),
    "maximum(a, b)": lambda a, b, c: larger(a, b),
    "min_number(a, b) + one": lambda a, b, c: np.fmin(a, b) + a.dtype.type(1),
    "max_number(a, b) + one": lambda a, b, c: np.fmax(a, b) + a.dtype.type(1),
    "maximum(a, 2)": lambda a, b, c: np.maximum(a, a.dtype.type(2)),
    "abs_(a)": lambda a, b, c: np.abs(a),
    "splat(extract(a, t % W), W)": lambda a, b, c: np.take_along_axis(a, rows_of(a) % a.shape[1], 1),
    "insert(a, t % W, extract(b, t % W))": inserted,
    "shuffle(a, b, LANES)": lambda a, b, c: interleave(*(v[:, ::-1] for v in (b, a)))[:, : a.shape[1]],
    "reverse(a)": lambda a, b, c: a[:, ::-1],
    "rotate(a, 1)": lambda a, b, c: np.roll(a, -1, 1),
    "rotate(a, DOWN)": lambda a, b, c: np.roll(a, 3, 1),
    "concat(split_high(a), split_low(b))": lambda a, b, c: np.hstack([split(a)[1], split(b)[0]]),
    "split_low(concat(a, b))": lambda a, b, c: a,
    "split_high(concat(a, b))": lambda a, b, c: b,
    "interleave_low(a, b)": lambda a, b, c: np.split(interleave(a, b), 2, 1)[0],
    "interleave_high(a, b)": lambda a, b, c: np.split(interleave(a, b), 2, 1)[1],
    "splat(reduce_add(a), W)": tree(lambda x, y: x + y),
    "splat(reduce_min(a), W)": tree(smaller),
    "splat(reduce_max(a), W)": tree(larger),
    "splat(reduce_min_number(a), W) + one": lambda a, b, c: np.fmin.reduce(a, 1, keepdims=True) + a.dtype.type(1),
    "splat(reduce_max_number(a), W) + one": lambda a, b, c: np.fmax.reduce(a, 1, keepdims=True) + a.dtype.type(1),
}
FLOAT_ONLY = {
    "a / b": lambda a, b, c: a / b,
    "a * 0.1": lambda a, b, c: a * a.dtype.type(0.1),
    "0.1 / a": lambda a, b, c: a.dtype.type(0.1) / a,
    "fma(a, b, c)": fused(1, 1),
    "fms(a, b, c)": fused(1, -1),
    "fnma(a, b, c)": fused(-1, 1),
    "fma(a, 2.5, c)": lambda a, b, c: fused(1, 1)(a, np.full_like(b, 2.5), c),
    "multiply_add(a, b, c)": fused(1, 1),
    "select(is_nan(a), one, zero)": lambda a, b, c: np.isnan(a),
    "sqrt(a)": lambda a, b, c: np.sqrt(a),
    "floor(a)": lambda a, b, c: np.floor(a),
    "ceil(a)": lambda a, b, c: np.ceil(a),
    "round_even(a)": lambda a, b, c: np.rint(a),
    "trunc(a)": lambda a, b, c: np.trunc(a),
    "copysign(a, b)": lambda a, b, c: np.copysign(a, b),
    "copysign(a, -1.0)": lambda a, b, c: -np.abs(a),
    "bitcast(to_int(a), ELEM)": lambda a, b, c: saturated(a).view(a.dtype),
}
INTEGER_ONLY = {
    "multiply_add(a, b, c)": lambda a, b, c: a * b + c,
    "a & b": lambda a, b, c: a & b,
    "a | b": lambda a, b, c: a | b,
    "a ^ b": lambda a, b, c: a ^ b,
    "~a": lambda a, b, c: ~a,
    "a & 5": lambda a, b, c: a & a.dtype.type(5),
    "a << 3": lambda a, b, c: a << a.dtype.type(3),
    "a >> (b & 7)": lambda a, b, c: a >> (b & a.dtype.type(7)),
    "a << (b & 7)": lambda a, b, c: a << (b & a.dtype.type(7)),
}
WIDE_INTEGER_ONLY = {
    "bitcast(to_float(a), ELEM)": lambda a, b, c: a.astype(f"f{a.itemsize}").view(a.dtype),
}


def saturated(a):
    info = np.iinfo(f"i{a.itemsize}")
    whole = np.trunc(np.where(np.isnan(a), 0, a))
    inside = np.where((whole >= -(2.0 ** (info.bits - 1))) & (whole < 2.0 ** (info.bits - 1)), whole, 0).astype(
        info.dtype
    )
    return np.where(
        whole >= 2.0 ** (info.bits - 1), info.max, np.where(whole < -(2.0 ** (info.bits - 1)), info.min, inside)
    )


def operations(elem):
    if elem in FLOATS:
        return COMMON | FLOAT_ONLY
    return COMMON | INTEGER_ONLY | (WIDE_INTEGER_ONLY if elem[1:] in ("32", "64") else {})


SOURCE = """
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.simd import *


def make(types, ELEM, W, LANES, DOWN):
    @range_kernel("test_operations", types, spec=(ELEM, W))
    def test_operations(args, worker, lo, hi):
        zero = zeros(ELEM, W)
        one = zero + 1
        for t in range(args.n):
            a = load(args.a, t * W, W)
            b = load(args.b, t * W, W)
            c = load(args.c, t * W, W)
            out = advance(args.out, t * W * COUNT)
"""


def compiled(expressions, elem, W, folder):
    """The kernel that stores every expression, for vectors a, b, c, one after the other."""
    text = SOURCE.replace("COUNT", str(len(expressions)))
    for row, expression in enumerate(expressions):
        text += f"            store(out, {row} * W, {expression})\n"
    path = folder / f"operations_{elem}.py"
    path.write_text(text + "\n    return test_operations\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    order = interleave(*(np.arange(W)[None, ::-1] + at for at in (W, 0)))[0, :W]
    types = ARGS.types(out=elem, a=elem, b=elem, c=elem)
    return module.make(types, elem, W, " ".join(map(str, order)), -3)


def operands(elem, W, rng):
    """Three arrays (tiles, W): all pairs of special numbers, then random ones."""
    dtype = numpy_type(elem)
    if elem in FLOATS:
        info = np.finfo(dtype)
        special = [0, -0.0, 1, -1.5, 0.5, 2.5, -2.5, np.inf, -np.inf, np.nan, info.max, info.tiny,
                   info.smallest_subnormal, 1 / 3, 2.0**31, -(2.0**63), 8388609.5]  # fmt: skip
        random = [(rng.standard_normal(600) * 10 ** rng.uniform(-3, 3, 600)).astype(dtype) for _ in range(3)]
    else:
        info = np.iinfo(dtype)
        special = [info.min, info.min + 1, 0, 1, 2, 7, info.max // 2, info.max - 1, info.max]
        random = [rng.integers(info.min, info.max, 600, dtype, endpoint=True) for _ in range(3)]
    special = np.array(special, dtype)
    a, b = (v.ravel() for v in np.meshgrid(special, special))
    c = rng.permutation(a)
    tiles = -(-(len(a) + 600) // W)
    return [
        np.resize(np.concatenate([x, y]), tiles * W).reshape(tiles, W) for x, y in zip((a, b, c), random, strict=True)
    ]


def same(result, expected):
    """Equal bits, or NaN in both."""
    expected = np.broadcast_to(expected, result.shape).astype(result.dtype)
    if result.dtype.kind != "f":
        return result == expected
    bits = f"u{result.itemsize}"
    return (result.view(bits) == expected.view(bits)) | (np.isnan(result) & np.isnan(expected))


@pytest.mark.parametrize("elem", FLOATS + SIGNED + UNSIGNED)
def test_operations(elem, rng, tmp_path):
    W = lanes(elem, target.current().vector_bytes)
    table = operations(elem)
    a, b, c = operands(elem, W, rng)
    out = np.zeros((len(a), len(table), W), a.dtype)
    run(compiled(table, elem, W, tmp_path), out, a, b, c, ints=(len(a),))
    wrong = {}
    with np.errstate(all="ignore"):
        for row, (expression, reference) in enumerate(table.items()):
            expected = reference(a, b, c)
            right = same(np.ascontiguousarray(out[:, row]), expected)
            if not right.all():
                at = tuple(np.argwhere(~right)[0])
                full = np.broadcast_to(expected, a.shape)
                wrong[expression] = f"{a[at]} {b[at]} {c[at]}: {out[at[0], row, at[1]]}, not {full[at]} at {at}"
            assert elem in UNSIGNED or len(np.unique(out[:, row])) > 1 or "all_lanes" in expression, expression
    assert not wrong, "\n".join(f"{k}: {v}" for k, v in wrong.items())


def make_transpose(elem, K, W):
    @range_kernel("test_transpose", ARGS.types(out=elem, a=elem), spec=(elem, K, W))
    def test_transpose(args, worker, lo, hi):
        store_rows(args.out, W, transpose(load_rows(args.a, W, K, W)))

    return test_transpose


@pytest.mark.parametrize("elem", ["f32", "f64", "u16"])
def test_transpose(elem):
    W = lanes(elem, target.current().vector_bytes)
    for K in sorted({2, min(4, W), W if W <= 16 else 8}):
        a = np.arange(K * W).astype(numpy_type(elem)).reshape(K, W)
        out = np.zeros_like(a)
        run(make_transpose(elem, K, W), out, a)
        assert (out.ravel() == a.T.ravel()).all(), K


@pytest.fixture(scope="module")
def other_widths():
    """This folder's tests at the other widths, both at once."""
    files = sorted(str(p) for p in Path(__file__).parent.glob("test_simd*.py") if p.name != "test_simd_math.py")
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", *files]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    started = {name: subprocess.Popen(command, env=os.environ | WIDTHS[name], **streams) for name in WIDTHS}
    yield started
    for process in started.values():
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.mark.skipif(target.current().arch != "x86_64", reason="names of x86 targets")
@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="is one of them")
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, other_widths):
    told, _ = other_widths[width].communicate()
    assert other_widths[width].returncode == 0, told[-8000:]


def test_every_operation_is_documented():
    text = (ROOT / "docs" / "simd.md").read_text()
    for name in simd.__all__:
        assert f"| `{name}" in text, f"docs/simd.md has no row that begins with `{name}`"
