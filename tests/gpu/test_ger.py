"""ger on a GPU: every solver against the definition, in the emulator with all of its checks."""

import numpy as np
import pytest
from helpers import (
    NUMPY_FLOATS,
    assert_close,
    assert_exact,
    exact_integers,
    from_float64,
    in_library,
    lay_out,
    nan_filled,
    real_values,
    to_float64,
)
from ptx_emulator import EmulatorError, launch

import numbaprims
from numbaprims.dispatch import registry
from numbaprims.gpu.ger.kernels import make_row_block
from numbaprims.gpu.memory import DeviceArray, to_device
from numbaprims.reference import ger as reference

SOLVERS = [solver.name for solver in registry.solvers("ger", "cuda")]
DTYPES = NUMPY_FLOATS
# Less than a vector, ends of vectors and of groups of rows, tiles of 4, 8, 16 and 32 lanes, more than one block.
SHAPES = [(1, 1), (1, 40), (40, 1), (7, 64), (33, 129), (130, 70), (37, 300), (3, 1100), (260, 12)]


def forced(solver):
    return numbaprims.config(algorithm={"ger": solver})


def bits(a, dtype):
    """The storage of an array of the host."""
    return a.view(np.uint16) if dtype in ("f16", "bf16") else a


def run(solver, dtype, x, y, a, alpha, out):
    """Storage arrays in, the storage of the result out; the memory layouts of the host are kept."""
    x, y, result = (to_device(in_library(z, dtype)) for z in (x, y, out))
    a = None if a is None else to_device(in_library(a, dtype))
    with forced(solver):
        assert numbaprims.ger(x, y, a=a, alpha=alpha, out=result) is result
    return bits(result.to_host(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_exact(gpu, solver, dtype):
    """Integers: with and without a, C- and F-ordered, bit for bit, over results full of NaN."""
    rng = np.random.default_rng(1)
    for m, n in SHAPES if dtype == "f32" else [(40, 1), (37, 300), (3, 1100)]:
        x, y, a = (exact_integers(shape, dtype, 4, rng) for shape in ((m,), (n,), (m, n)))
        for order in ("C", "F"):
            for added in (None, a):
                old = None if added is None else lay_out(from_float64(a, dtype), order)
                vectors = from_float64(x, dtype), from_float64(y, dtype)
                out = run(solver, dtype, *vectors, old, -2.0, nan_filled((m, n), dtype, order))
                expected = reference.ger(x, y, a=added, alpha=-2.0)
                assert_exact(out, expected, dtype, vacuous=not expected.any())


@pytest.mark.parametrize("layout", ["negative", "sliced", "padded", "offset", "F"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_layouts(gpu, solver, layout):
    """Any strides and any alignment, of the result, of a and of the vectors."""
    rng = np.random.default_rng(2)
    for dtype, m, n in (("f32", 21, 70), ("f16", 37, 66)):
        x, y, a = (real_values(shape, dtype, rng) for shape in ((m,), (n,), (m, n)))
        expected = reference.ger(*(to_float64(z, dtype) for z in (x, y)), a=to_float64(a, dtype), alpha=0.5)
        for layouts in ((layout, "C", "C"), ("C", layout, "C"), (layout, layout, layout)):
            out = nan_filled((m, n), dtype, layouts[0])
            given = [lay_out(z, layouts[2]) for z in (x, y)]
            arrays = [to_device(in_library(z, dtype)) for z in (*given, lay_out(a, layouts[1]), out)]
            if numbaprims.explain("ger", *arrays[:2], a=arrays[2], out=arrays[3])[solver].refusal:
                continue
            result = run(solver, dtype, *given, lay_out(a, layouts[1]), 0.5, out)
            assert_close(result, expected, k=3, dtype=dtype)


@pytest.mark.parametrize("solver", SOLVERS)
def test_update_in_place_leaves_the_rest_alone(gpu, solver):
    rng = np.random.default_rng(3)
    for columns in (64, 61):
        base = rng.standard_normal((40, 100)).astype(np.float32)
        x, y = rng.standard_normal(33).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
        whole = to_device(base)
        w = whole[4:37, 8 : 8 + columns]
        with forced(solver):
            assert numbaprims.ger(to_device(x), to_device(y), a=w, alpha=-1.0, out=w) is w
        found = whole.to_host()
        want = base.copy()
        want[4:37, 8 : 8 + columns] = reference.ger(x, y, a=base[4:37, 8 : 8 + columns], alpha=-1.0)
        np.testing.assert_allclose(found[4:37, 8 : 8 + columns], want[4:37, 8 : 8 + columns], rtol=1e-5, atol=1e-6)
        found[4:37, 8 : 8 + columns] = base[4:37, 8 : 8 + columns]
        np.testing.assert_array_equal(found, base)


def test_alignment_changes_no_bit(gpu):
    rng = np.random.default_rng(4)
    x, y, a = (rng.standard_normal(shape).astype(np.float32) for shape in (19, 64, (19, 64)))
    results = set()
    for offset in range(4):
        flat = to_device(np.zeros(19 * 64 + 4, np.float32))
        out = flat[offset : offset + 19 * 64]
        lay = np.zeros(64 + 4, np.float32)
        lay[offset : offset + 64] = y
        view = to_device(lay)[offset : offset + 64]
        matrix = DeviceArray(out.memory, out.pointer, (19, 64), (256, 4), out.dtype, out.driver)
        with forced("register_block"):
            numbaprims.ger(to_device(x), view, a=to_device(a), out=matrix)
        results.add(matrix.to_host().tobytes())
    assert len(results) == 1
    kernels = {launched.entry for launched in gpu.launches}
    assert kernels == {"numbaprims_ger_tile_f32_16_4_True", "numbaprims_ger_tile_f32_32_1_True"}


def test_choice(gpu):
    """The tile kernel for what is contiguous, never the naive one; a reason for each refusal."""
    for shape in ((1, 5000), (64, 64), (4096, 17), (1000, 1000)):
        x, y = (to_device(np.ones(n, np.float32)) for n in shape)
        explanation = numbaprims.explain("ger", x, y)
        assert explanation.chosen.solver == "register_block", explanation
    x = to_device(np.ones(64, np.float32))
    out = to_device(np.zeros((128, 128), np.float32)[::2, ::2])
    explanation = numbaprims.explain("ger", x, x, out=out)
    assert "contiguous" in explanation["register_block"].refusal
    assert explanation.chosen.solver != "naive"


def test_planted_errors_are_seen():
    """The kernel with a row too many, or with NaN left standing: the emulator and the comparison notice."""
    kernel = make_row_block("f32", False)
    x, y, out = np.ones(4, np.float32), np.ones(8, np.float32), np.full((3, 8), np.nan, np.float32)
    arguments = (out, x, y, 0, 1.0, 3, 8, 1, 8, 1, 0, 0, 1, 1)
    launch(kernel, 3, kernel.threads, *arguments)
    assert (out == 1).all()
    with pytest.raises(EmulatorError):
        launch(kernel, 4, kernel.threads, *arguments)
