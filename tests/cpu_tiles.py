"""What the tests of register tiles share: small integers in the middle of NaN, a kernel called on addresses, widths."""

import ctypes

import numpy as np

from numbaprims.cpu import target
from numbaprims.cpu.simd import Arguments, lanes

ARGS = Arguments(
    arrays=("out", "x", "none", "w", "c", "shifts"),
    ints=("row", "rows", "column", "columns", "pitch", "left", "table", "places"),
)
FLOATS = {"f32": np.float32, "f64": np.float64}
WIDTHS = {
    "avx2": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""},
    "sse": {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""},
}


def width(elem):
    return lanes(elem, target.current().vector_bytes)


def integers(shape, elem, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(FLOATS[elem])


def surrounded(x):
    """x, contiguous, in the middle of NaN."""
    room = np.full(x.size + 256, np.nan, x.dtype)
    inner = room[128 : 128 + x.size].reshape(x.shape)
    inner[...] = x
    return inner


def run(kernel, *arrays, **ints):
    """Call a range kernel on arrays (null for those that are not given)."""
    words = np.zeros(80, np.int64)
    words[: len(arrays)] = [0 if array is None else array.ctypes.data for array in arrays]
    for name, value in ints.items():
        words[ARGS.slot(name)] = value
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)(words.ctypes.data, 0, 0, 1)


def at(x, h, w):
    """x[h, w], zero outside."""
    return x[h, w] if 0 <= h < x.shape[0] and 0 <= w < x.shape[1] else 0 * x[0, 0]
