"""The largest errors of the elementary functions in units in the last place, on the CPU that runs it, as a table.

    python docs/notes/elementary_errors.py [function ...]

float32: every 4001st number of all exponents, against float64; float64: drawn from all exponents, against 40 digits.
"""

import math
import sys

import mpmath
import numpy as np

import numbaprims

mpmath.mp.dps = 40
KINDS = {
    "exp": (np.exp, mpmath.exp),
    "exp2": (np.exp2, lambda x: mpmath.mpf(2) ** x),
    "expm1": (np.expm1, mpmath.expm1),
    "log": (np.log, mpmath.log),
    "log1p": (np.log1p, mpmath.log1p),
    "erf": (np.vectorize(math.erf), mpmath.erf),
    "tanh": (np.tanh, mpmath.tanh),
    "sqrt": (np.sqrt, mpmath.sqrt),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x)),
    "reciprocal": (lambda x: 1 / x, lambda x: 1 / x),
    **{name: (getattr(np, name), getattr(mpmath, name)) for name in ("sin", "cos", "tan", "sinh", "cosh", "log10")},
    **{
        f"a{name}": (getattr(np, f"arc{name}"), getattr(mpmath, f"a{name}"))
        for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")
    },
    "log2": (np.log2, lambda x: mpmath.log(x, 2)),
    "erfc": (np.vectorize(math.erfc), mpmath.erfc),
}
#: Where a function is neither infinite, nor NaN, nor below the normal range, in float32; exponentials of float64 reach
#: some times as far.
RANGES = {
    "exp": (-87, 88), "exp2": (-125, 127), "expm1": (-1e30, 88), "log1p": (-1, 1e37), "sinh": (-88, 88),
    "cosh": (-88, 88), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1), "acosh": (1, 1e37), "erfc": (-1e30, 9.19),
    "log": (0, 1e37), "log2": (0, 1e37), "log10": (0, 1e37), "sqrt": (0, 1e37), "rsqrt": (0, 1e37),
}  # fmt: skip
FARTHER = {"exp": 8, "exp2": 8, "expm1": 8, "sinh": 8, "cosh": 8, "erfc": 2.8}


def usual(x, kind):
    """Numbers of which the result is neither infinite, nor NaN, nor below the normal range."""
    low, high = RANGES.get(kind, (-1e37, 1e37))
    scale = 1 if x.dtype == np.float32 else FARTHER.get(kind, 1)
    return x[np.isfinite(x) & (x > scale * low) & (x < scale * high) & (np.abs(x) > 1e-37)]


def main(kinds):
    print("| function | float32 | float64 |\n|---|---|---|")
    rng = np.random.default_rng(0)
    for kind in kinds or KINDS:
        wide, exact = KINDS[kind]
        function = getattr(numbaprims, kind)
        x = usual(np.arange(0, 1 << 32, 4001, dtype=np.uint64).astype(np.uint32).view(np.float32), kind)
        want = wide(x.astype(np.float64))
        single = np.max(np.abs(function(x).astype(np.float64) - want) / np.spacing(np.abs(want).astype(np.float32)))
        most = 1024 if kind in ("sin", "cos", "tan") else 11
        x = usual(np.ldexp(rng.uniform(-2, 2, 6000), rng.integers(-40, most, 6000)), kind)
        double = 0.0
        for number, found in zip(x.tolist(), function(x).tolist(), strict=True):
            right = exact(mpmath.mpf(number))
            double = max(
                double, float(abs(mpmath.mpf(found) - right) / mpmath.mpf(float(np.spacing(abs(float(right))))))
            )
        print(f"| `{kind}` | {single:.2f} | {double:.2f} |", flush=True)


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main(sys.argv[1:])
