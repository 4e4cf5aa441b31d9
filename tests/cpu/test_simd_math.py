"""exp, log, tanh, ... of vectors: errors over all exponents, special cases, equal bits everywhere.

The errors are measured in one process for each set of instructions, which runs this file as a script.
`--slow` adds a sweep over all 2**32 float32 numbers.
"""

import functools
import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from numbaprims.cpu import target as cpu
from numbaprims.cpu.jit import range_kernel
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import Arguments, erf, exp, expm1, lanes, load, log, log1p, sigmoid, store, tanh
from numbaprims.cpu.simd.math import exponential
from numbaprims.cpu.simd.math.emit import vector_function

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf")
TARGETS = {
    "native": {},
    "avx2": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""},
    "sse": {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""},
}
#: Largest errors in ULP: (float32, float64) with fused multiply-add, then without.
BOUNDS = {
    "exp": ((1.0, 1.0), (1.2, 1.2)),
    "expm1": ((1.4, 1.3), (1.4, 1.3)),
    "log": ((1.0, 1.0), (1.0, 1.0)),
    "log1p": ((1.0, 1.0), (1.0, 1.0)),
    "tanh": ((1.6, 2.0), (1.6, 2.0)),
    "sigmoid": ((1.6, 1.6), (1.7, 1.7)),
    "erf": ((1.5, 1.2), (1.6, 1.4)),
}


# ------------------------------------------------------------------------------------------------ references


def erf_series(x):
    """2/sqrt(pi) exp(-x**2) sum 2**n x**(2n+1) / (1 3 ... (2n+1)), whose terms are all positive."""
    kind = x.dtype.type
    result = np.where(np.isnan(x), x, kind(1))
    inside = np.abs(x) < 6.5
    a = np.abs(x[inside])
    term = a * kind(2) / np.sqrt(np.arctan2(kind(0), kind(-1)))
    total = term.copy()
    for n in range(1, 150):
        term = term * (2 * a * a / kind(2 * n + 1))
        total += term
        if not (term > total * kind(2.0**-66)).any():
            break
    result[inside] = np.minimum(np.exp(-a * a) * total, kind(1))
    return np.copysign(result, x)


REFERENCES = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
    "erf": erf_series,
}


def errors(result, exact):
    """|result - exact| in units of the last place of a number like `exact`; inf where only one is NaN."""
    info = np.finfo(result.dtype)
    bits = {4: np.uint32, 8: np.uint64}[result.itemsize]
    overflow = exact.dtype.type(2) ** info.maxexp  # infinity stands for the number after the largest
    nan = np.isnan(result), np.isnan(exact)
    with np.errstate(invalid="ignore"):
        size = np.clip(np.abs(exact), info.smallest_normal, info.max).astype(result.dtype)
        power = (size.view(bits) & np.asarray(np.inf, result.dtype).view(bits)).view(result.dtype)
        difference = np.clip(result, -overflow, overflow) - np.clip(exact, -overflow, overflow)
        error = np.abs(difference) / (power * exact.dtype.type(info.eps))
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], np.inf, error))


# ---------------------------------------------------------------------------------------------------- points


def float32_points(rng, mantissas=512, dense=4096):
    """All exponents, subnormal ones too, with sampled mantissas; more around 1 and at borders; both signs."""
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    sampled = rng.integers(0, 1 << 23, (256, mantissas), dtype=np.uint32)
    sampled[:, :4] = 0, 1, (1 << 23) - 1, 1 << 22
    subnormal = [(1 << k) | rng.integers(0, 1 << k, 64, dtype=np.uint32) for k in range(23)]
    near = (np.arange(103, 135, dtype=np.uint32)[:, None] << 23) | rng.integers(
        0, 1 << 23, (32, dense), dtype=np.uint32
    )
    borders = np.array(
        [88.72284, 88.72283, 87.33654, 103.27893, 103.97208, 17.328680, 0.4054651, 0.28768206, 0.34657359,
         9.010913, 0.85, 3.9192059, 3.95, 0.75, 1.5, 1.0, 2.0, 3.0, 0.5, 1e-30], np.float32,
    )  # fmt: skip
    around = borders.view(np.uint32)[:, None] + np.arange(-40, 40, dtype=np.int64).astype(np.uint32)
    parts = [exponents | sampled, *subnormal, near, around, np.array([0], np.uint32)]
    magnitude = np.concatenate([part.ravel() for part in parts]).astype(np.uint32)
    return np.concatenate([magnitude, magnitude | np.uint32(1 << 31)]).view(np.float32)


def float64_points(rng, count=40000):
    """Random bits, and intervals in which the functions change their form."""
    borders = np.array(
        [709.782712893384, 708.396418532264, 744.440071921382, 745.133219101942, 36.7, 0.4054651, 0.28768206,
         0.34657359, 19.06, 1.0, 5.9, 0.75, 1.5, 2.0, 3.0, 0.5, 1e-30],
    )  # fmt: skip
    around = borders.view(np.int64)[:, None] + np.arange(-20, 20)
    magnitude = np.concatenate(
        [
            (rng.integers(0, 1 << 63, count, dtype=np.uint64)).view(np.float64),
            rng.integers(0, 1 << 52, count // 8, dtype=np.uint64).view(np.float64) * 2.0 ** -rng.integers(0, 52),
            np.exp2(rng.uniform(-60, 11, count)),
            rng.uniform(0, 2, 2 * count),
            rng.uniform(0, 40, count),
            around.view(np.float64).ravel(),
            [0.0, np.inf, np.nan],
        ]
    )
    return np.concatenate([magnitude, -magnitude])


# --------------------------------------------------------------------------------------------------- kernels


@functools.cache
def functions(dtype, W):
    """A call (x) -> results of all NAMES, a row each, by one kernel over vectors of W lanes."""
    arguments = Arguments(arrays=("out", "x"), ints=("n",))
    args_type = arguments.types(out=dtype, x=dtype)

    @range_kernel("simd_math", args_type, spec=(dtype, W))
    def kernel(args, worker, lo, hi):
        n = args.n
        for i in range(lo * W, hi * W, W):
            x = load(args.x, i, W)
            store(args.out, i, exp(x))
            store(args.out, n + i, expm1(x))
            store(args.out, 2 * n + i, log(x))
            store(args.out, 3 * n + i, log1p(x))
            store(args.out, 4 * n + i, tanh(x))
            store(args.out, 5 * n + i, sigmoid(x))
            store(args.out, 6 * n + i, erf(x))

    def call(x):
        padded = np.resize(x, -(-x.size // W) * W)
        out = np.full((len(NAMES), padded.size), np.nan, x.dtype)
        phases = [(kernel, padded.size // W, 1 << 10)]
        make_launcher(Program.of(arguments, {"n": padded.size}, phases))(out, padded)
        return out[:, : x.size]

    return call


def width(dtype):
    return lanes(dtype, cpu.current().vector_bytes)


def worst(x, results, names=NAMES):
    """{name: {"error", "at", "signs"}}: the largest error, where it is, how many signs are wrong."""
    report = {}
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
    for name, result in zip(names, results, strict=True):
        with np.errstate(all="ignore"):
            exact = REFERENCES[name](wide)
        error = errors(result, exact)
        at = int(error.argmax())
        signs = (np.signbit(result) != np.signbit(exact)) & ~np.isnan(exact)
        report[name] = {"error": float(error[at]), "at": float(x[at]), "signs": int(signs.sum())}
    return report


def digest(x, results):
    """A number for each row's bits (NaN has many patterns: one of them)."""
    rows = np.where(np.isnan(results), x.dtype.type(np.nan), results)
    return [zlib.crc32(row.tobytes()) for row in rows]


def measure():
    """What the tests below look at, of this process's instructions."""
    report = {"fused": cpu.current().has_fma, "isa": cpu.current().isa}
    for dtype, points in (("f32", float32_points), ("f64", float64_points)):
        x = points(np.random.default_rng(7))
        results = functions(dtype, width(dtype))(x)
        report[dtype] = worst(x, results) if dtype == "f32" or has_longdouble() else {}
        report[dtype + " bits"] = digest(x, results)
        again = x[:: 1 + x.size // 40000]
        report[dtype + " widths"] = {
            W: digest(again, functions(dtype, W)(again)) for W in (2, 3, 4, 8, 16, 32) if W * x.itemsize <= 128
        }
    return report


def has_longdouble():
    return np.finfo(np.longdouble).nmant > 60


def sweep(start, stop):
    """The largest errors over the float32 numbers with the bits start ... stop - 1 times 2**22."""
    total = {}
    for chunk in range(start, stop):
        x = np.arange(chunk << 22, (chunk + 1) << 22, dtype=np.uint32).view(np.float32)
        for name, found in worst(x, functions("f32", width("f32"))(x)).items():
            if name not in total or not found["error"] <= total[name]["error"]:
                found["signs"] += total.get(name, found)["signs"] if name in total else 0
                total[name] = found
            else:
                total[name]["signs"] += found["signs"]
    return total


def run(target, *arguments):
    """This file as a script, for one set of instructions."""
    names = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
    environment = {key: value for key, value in os.environ.items() if key not in names or target == "native"}
    environment |= TARGETS[target] | {"PYTHONPATH": str(Path(cpu.__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, text=True
    )


def finished(process):
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


# ----------------------------------------------------------------------------------------------------- tests


def is_x86():
    return cpu.current().arch in ("x86_64", "amd64")


@pytest.fixture(scope="module")
def reports():
    if not is_x86():
        return {"native": finished(run("native"))}
    first, second = run("native"), run("sse")
    return {"native": finished(first), "avx2": finished(run("avx2")), "sse": finished(second)}


@pytest.mark.parametrize("dtype", ("f32", "f64"))
@pytest.mark.parametrize("target", TARGETS)
def test_errors_are_bounded_over_all_exponents(reports, target, dtype):
    if target not in reports or (dtype == "f64" and not has_longdouble()):
        pytest.skip("needs x86")
    report = reports[target]
    assert set(report[dtype]) == set(NAMES)
    for name, found in report[dtype].items():
        bound = BOUNDS[name][not report["fused"]][dtype == "f64"]
        assert found["error"] <= bound, (name, found)
        assert found["error"] > bound / 2, f"{name}: the bound {bound} is far above {found}"
        assert found["signs"] == 0, (name, found)


def test_widths_are_what_they_should_be(reports):
    if "sse" in reports:
        assert [reports[target]["isa"] for target in ("avx2", "sse")] == ["avx2", "sse4"]
        assert [reports[target]["fused"] for target in ("avx2", "sse")] == [True, False]


def test_documentation_states_the_bounds():
    stated = {}
    for line in (ROOT / "docs" / "simd.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4 and (name := cells[1].strip("`").removesuffix("(x)")) in NAMES:
            stated[name] = tuple(tuple(map(float, cell.split("/"))) for cell in cells[3:5])
    assert stated == BOUNDS


@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_bits_do_not_depend_on_the_width(reports, dtype):
    for target, report in reports.items():
        digests = list(report[dtype + " widths"].values())
        assert len(digests) >= 5
        assert all(other == digests[0] for other in digests), target
    fused = [report[dtype + " bits"] for report in reports.values() if report["fused"]]
    assert all(other == fused[0] for other in fused)


INF, NAN = math.inf, math.nan
#: name -> the arguments, then the results
SPECIAL = {
    "exp": ((-INF, INF, 0.0, -0.0, 1e30, -1e30), (0.0, INF, 1.0, 1.0, INF, 0.0)),
    "expm1": ((-INF, INF, 0.0, -0.0, 1e30, -1e30, 1e-40), (-1.0, INF, 0.0, -0.0, INF, -1.0, 1e-40)),
    "log": ((-INF, INF, 0.0, -0.0, -1.0, -1e-40, 1.0), (NAN, INF, -INF, -INF, NAN, NAN, 0.0)),
    "log1p": ((-INF, INF, 0.0, -0.0, -1.0, -1.5, 1e-40), (NAN, INF, 0.0, -0.0, -INF, NAN, 1e-40)),
    "tanh": ((-INF, INF, 0.0, -0.0, 1e30, -1e30, -1e-40), (-1.0, 1.0, 0.0, -0.0, 1.0, -1.0, -1e-40)),
    "sigmoid": ((-INF, INF, 0.0, -0.0, 1e30, -1e30), (0.0, 1.0, 0.5, 0.5, 1.0, 0.0)),
    "erf": ((-INF, INF, 0.0, -0.0, 1e30, -1e30), (-1.0, 1.0, 0.0, -0.0, 1.0, -1.0)),
}


@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_special_cases(dtype):
    kind = {"f32": np.float32, "f64": np.float64}[dtype]
    for name, (arguments, results) in SPECIAL.items():
        x = np.array([*arguments, NAN, -NAN], kind)
        want = np.array([*results, NAN, NAN], kind)
        have = functions(dtype, width(dtype))(x)[NAMES.index(name)]
        np.testing.assert_array_equal(have, want, err_msg=name)
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(have[number]), np.signbit(want[number]), err_msg=name)


@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_odd_functions_are_odd(dtype, rng):
    x = rng.standard_normal(4096).astype({"f32": np.float32, "f64": np.float64}[dtype])
    plus, minus = functions(dtype, width(dtype))(x), functions(dtype, width(dtype))(-x)
    for name in ("tanh", "erf"):
        row = NAMES.index(name)
        np.testing.assert_array_equal(plus[row], -minus[row])


@vector_function(exponential.exp)
def exp_of_any(x):
    """e**x of every lane, as formulas have it."""


@vector_function(exponential.exp_of_negative)
def exp_below(x):
    """e**x of every lane, where x is about 0 at most."""


def both_exponentials(dtype, W):
    arguments = Arguments(arrays=("out", "below", "x"))

    @range_kernel("simd_exponentials", arguments.types(out=dtype, below=dtype, x=dtype), spec=(dtype, W))
    def kernel(args, worker, lo, hi):
        for i in range(lo * W, hi * W, W):
            store(args.out, i, exp_of_any(load(args.x, i, W)))
            store(args.below, i, exp_below(load(args.x, i, W)))

    return kernel, arguments


@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_exponentials_of_negative_numbers_have_the_bits_of_all(dtype):
    """Of what is 0 and NaN too; a little above 0 as well.

    Of float32 tables have 0 where those of all are subnormal; that of AVX2 is another one: 2 units in the last place as
    far as 20 and 6 at the end.
    """
    kind, W = {"f32": np.float32, "f64": np.float64}[dtype], width(dtype)
    points = [
        np.linspace(-110, 1, 1 << 16),
        np.linspace(-760, -700, 1 << 14),
        [0.0, -0.0, -np.inf, np.nan, -1e-30, -1e30],
    ]
    x = np.concatenate(points).astype(kind)
    x = np.resize(x, -(-x.size // W) * W)
    found = [np.full_like(x, np.nan) for _ in range(2)]
    kernel, arguments = both_exponentials(dtype, W)
    make_launcher(Program.of(arguments, {}, [(kernel, x.size // W, 1 << 10)]))(*found, x)
    tiny = np.finfo(kind).tiny
    tables = dtype == "f32" and cpu.current().vector_bytes >= 32
    if tables:
        found[0][x < exponential.NORMAL] = 0.0
    if tables and cpu.current().vector_bytes == 32:
        finite = (x >= exponential.NORMAL) & np.isfinite(x) & (x != 0)
        np.testing.assert_array_equal(*(each[~finite] for each in found))
        with np.errstate(under="ignore"):
            want = np.exp(x[finite].astype(np.float64))
        units = np.abs(found[1][finite] - want) / np.spacing(want.astype(kind))
        assert units[x[finite] >= -20].max() <= 2 and units.max() <= 6
    else:
        np.testing.assert_array_equal(*found)
    subnormal = (found[1] > 0) & (found[1] < tiny)
    assert subnormal.any() != tables and (found[1] == 0).any() and not np.signbit(found[1][found[1] == 0]).any()


@pytest.mark.slow
@pytest.mark.parametrize("target", ("native", "sse"))
def test_errors_are_bounded_over_all_float32_numbers(target):
    if target == "sse" and not is_x86():
        pytest.skip("needs x86")
    halves = [run(target, "sweep", 0, 512), run(target, "sweep", 512, 1024)]
    fused = cpu.current().has_fma and target == "native"
    worst = [(name, found) for half in halves for name, found in finished(half).items()]
    print(worst)
    assert [item for item in worst if not item[1]["error"] <= BOUNDS[item[0]][not fused][0]] == []
    assert [item for item in worst if not math.isfinite(item[1]["error"]) or item[1]["signs"]] == []


if __name__ == "__main__":
    if sys.argv[1:2] == ["sweep"]:
        print(json.dumps(sweep(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        print(json.dumps(measure()))
