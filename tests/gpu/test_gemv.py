"""gemv on a GPU: every solver against the definition, in the emulator with all of its checks."""

import inspect
import textwrap

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
from ptx_emulator.driver import EmulatedDriver

import numbaprims
from numbaprims.dispatch import registry
from numbaprims.gpu import driver
from numbaprims.gpu.gemv import arguments, kernels
from numbaprims.gpu.jit import gpu_kernel
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.target import A100
from numbaprims.ops import gemv as ops
from numbaprims.reference import gemv as reference

SOLVERS = [solver.name for solver in registry.solvers("gemv", "cuda")]
DTYPES = NUMPY_FLOATS
# Of op(A): one vector and less, groups of 8 lanes, warps, whole blocks for a row, rows cut into chunks; columns for 4,
# 8, 16 and 32 lanes; ends of every kind of vector.
SHAPES = [(1, 1), (1, 40), (40, 1), (7, 64), (33, 129), (130, 72), (10, 784), (3, 9000), (20, 700), (600, 9)]


def forced(solver):
    return numbaprims.config(algorithm={"gemv": solver})


def bits(a, dtype):
    """The storage of an array of the host."""
    return a.view(np.uint16) if dtype in ("f16", "bf16") else a


def run(solver, dtype, a, x, y, out, **factors):
    """Storage arrays in, the storage of the result out; the memory layouts of the host are kept."""
    a, x, result = (to_device(in_library(z, dtype)) for z in (a, x, out))
    y = None if y is None else to_device(in_library(y, dtype))
    if numbaprims.explain("gemv", a, x, y=y, out=result, **factors)[solver].refusal:
        return None
    with forced(solver):
        assert numbaprims.gemv(a, x, y=y, out=result, **factors) is result
    return bits(result.to_host(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_exact(gpu, solver, dtype):
    """Integers whose sums are exact, plain and transposed, over results full of NaN: bit for bit."""
    rng = np.random.default_rng(1)
    for m, n in SHAPES if dtype == "f32" else [(33, 136), (3, 9000)]:
        for trans in (False, True):
            a = exact_integers((n, m) if trans else (m, n), dtype, n, rng)
            x, y = exact_integers((n,), dtype, n, rng), exact_integers((m,), dtype, n, rng)
            expected = reference.gemv(a, x, y=y, alpha=2.0, beta=-3.0, trans=trans)
            stored = [from_float64(z, dtype) for z in (a, x, y)]
            out = run(solver, dtype, *stored, nan_filled((m,), dtype), alpha=2.0, beta=-3.0, trans=trans)
            assert_exact(out, expected, dtype, vacuous=not expected.any())


@pytest.mark.parametrize("layout", ["negative", "sliced", "padded", "offset", "F"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_layouts(gpu, solver, layout):
    """Any strides and any alignment, of the matrix, of the vectors and of the result."""
    rng = np.random.default_rng(2)
    ran = 0
    for dtype, m, n in (("f32", 21, 150), ("f16", 150, 37)):
        a, x, y = (real_values(shape, dtype, rng) for shape in ((m, n), (n,), (m,)))
        wide = [to_float64(z, dtype) for z in (a, x, y)]
        expected = reference.gemv(wide[0], wide[1], y=wide[2], alpha=0.5, beta=1.0)
        for of_a, of_vectors in ((layout, "C"), ("C", layout), (layout, layout)):
            given = lay_out(a, of_a), lay_out(x, of_vectors), lay_out(y, of_vectors)
            out = run(solver, dtype, *given, nan_filled((m,), dtype, of_vectors), alpha=0.5, beta=1.0)
            if out is not None:
                assert_close(out, expected, k=n, dtype=dtype, max_abs=np.sqrt(n) * 4)
                ran += 1
    assert ran >= (2 if layout == "sliced" else 6)


def test_chunks_and_repeated_rows(gpu, monkeypatch):
    """Sums that are cut, each way; four rows a group, the last of which are not there."""
    rng = np.random.default_rng(3)
    for blocks, m, n, trans, kernel in (
        (1024, 2, 30_000, False, "rows_f32_1_32_8"),
        (1024, 300, 20, False, "rows_f32_1_8_1"),
        (1024, 300, 132, False, "rows_f32_1_32_1"),
        (2, 258, 20, False, "rows_f32_4_8_1"),
        (64, 1026, 132, False, "rows_f32_4_32_1"),
        (64, 130, 2052, False, "rows_f32_4_32_8"),
        (1024, 12, 9000, True, "columns_f32_4"),
        (1024, 132, 3000, True, "columns_f32_32"),
    ):
        monkeypatch.setattr(arguments, "BLOCKS", blocks)
        ops._gemv._launchers.clear()
        a = rng.standard_normal((n, m) if trans else (m, n)).astype(np.float32)
        x = rng.standard_normal(n).astype(np.float32)
        expected = reference.gemv(a, x, trans=trans)
        gpu.launches.clear()
        out = run("register_block", "f32", a, x, None, nan_filled((m,), "f32"), trans=trans)
        assert_close(out, expected, k=n, max_abs=np.sqrt(n) * 4)
        ops._gemv._launchers.clear()
        ran = [launched.entry for launched in gpu.launches]
        assert ran[0] == f"numbaprims_gemv_{kernel}_True", ran
        assert (len(ran) == 2) == (kernel in ("rows_f32_1_32_8", "columns_f32_4", "columns_f32_32")), ran


def test_empty_k_and_beta_zero(gpu):
    a, x, y = np.ones((4, 0), np.float32), np.ones(0, np.float32), np.arange(4, dtype=np.float32)
    for solver in SOLVERS:
        for trans in (False, True):
            matrix = a.T if trans else a
            out = run(solver, "f32", matrix, x, y, nan_filled((4,), "f32"), beta=2.0, trans=trans)
            np.testing.assert_array_equal(out, 2 * y)
        b, z = np.ones((5, 9), np.float32), np.ones(9, np.float32)
        out = run(solver, "f32", b, z, np.full(5, np.nan, np.float32), nan_filled((5,), "f32"), beta=0.0)
        assert (out == 9).all()


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_nan_and_infinity_go_through(gpu, solver, trans):
    a, x = np.ones((120, 90), np.float32), np.ones(90, np.float32)
    a[3, 4], a[119, 89], a[7, 5], x[17] = np.nan, np.inf, -np.inf, 2
    out = run(solver, "f32", np.ascontiguousarray(a.T) if trans else a, x, None, nan_filled((120,), "f32"), trans=trans)
    assert np.isnan(out[3]) and out[119] == np.inf and out[7] == -np.inf
    assert (np.delete(out, [3, 7, 119]) == 91).all()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d in ("f32", "f16")])
def test_bits_do_not_depend_on_where_a_begins(gpu, dtype):
    rng = np.random.default_rng(4)
    for m, n, trans in ((13, 720, False), (720, 88, True)):
        values, x = real_values((m, n), dtype, rng), real_values((m if trans else n,), dtype, rng)
        found = set()
        for offset in (0, 1, 3):
            flat = np.zeros(m * n + 8, values.dtype)
            flat[offset : offset + m * n] = values.ravel()
            whole = to_device(in_library(flat, dtype))
            a = whole[offset : offset + m * n]
            a.shape, a.strides = (m, n), (n * a.itemsize, a.itemsize)
            with forced("register_block"):
                found.add(numbaprims.gemv(a, to_device(in_library(x, dtype)), trans=trans).to_host().tobytes())
        assert len(found) == 1
    both = {launched.entry.rsplit("_", 1)[1] for launched in gpu.launches if "combine" not in launched.entry}
    assert both == {"True", "False"}


def test_choice(gpu):
    """register_block for what is contiguous, never the naive one; a reason for the refusal."""
    for m, n in ((1, 5000), (64, 64), (4096, 17), (1000, 1000), (10, 784)):
        a, x = to_device(np.ones((m, n), np.float32)), to_device(np.ones(n, np.float32))
        assert numbaprims.explain("gemv", a, x).chosen.solver == "register_block"
        assert numbaprims.explain("gemv", a.T, x, trans=True).chosen.solver == "register_block"
    a, x = to_device(np.zeros((128, 128), np.float32)[::2, ::2]), to_device(np.ones(64, np.float32))
    explanation = numbaprims.explain("gemv", a, x)
    assert "contiguous" in explanation["register_block"].refusal
    assert explanation.chosen.solver == "row_block"


def test_cut_covers_every_term():
    for m, n, order in ((1, 10**8, "row"), (5, 70_001, "row"), (3000, 10**6, "row"), (7, 10**6, "column")):
        problem = type("P", (), {"m": m, "n": n, "order": order, "dtype": "f32"})
        how = arguments.cut(problem)
        assert (how.chunks - 1) * how.length < n <= how.chunks * how.length
        assert how.chunks <= arguments.MOST_CHUNKS


MUTANTS = {
    "no barrier before the tree": ("        barrier()\n        if t < 32", "        if t < 32"),
    "no barrier in the warp": ("                warp_barrier()\n                half =", "                half ="),
    "no barrier before the halving": ("            warp_barrier()\n            half =", "            half ="),
    "the listing's own test of i": ("i < end:\n                product", "i < end + THREADS:\n                product"),
    "one fold less": ("while i >= 32", "while i > 63"),
    "not cleared": ("        buff[t] = number(0.0)\n", ""),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_errors_in_algorithm_1_are_seen(name):
    """What the listing leaves out, and what could be got wrong: a race, a bad access or a wrong sum each."""
    source = textwrap.dedent(inspect.getsource(kernels.make_row_block.__wrapped__)).replace("@functools.cache\n", "")
    old, new = MUTANTS[name]
    assert source.count(old) == 1
    space = dict(vars(kernels), gpu_kernel=gpu_kernel)
    exec(source.replace(old, new), space)
    original, mutant = kernels.make_row_block("f32"), space["make_row_block"]("f32")
    a, x = np.arange(900, dtype=np.float32).reshape(3, 300) % 7, np.ones(300, np.float32)

    def result(kernel):
        out = np.full(3, np.nan, np.float32)
        launch(kernel, 3, kernel.threads, out, a.copy(), x, 0, 0, 1.0, 0.0, 3, 300, 1, 300, 1, 0, 300, 1, 1, 0, 1)
        return out

    np.testing.assert_array_equal(result(original), a.sum(1))
    try:
        out = result(mutant)
    except EmulatorError as error:
        assert type(error) is not EmulatorError
    else:
        assert not np.array_equal(out, a.sum(1)), "the planted error went unseen"


def test_on_an_older_gpu_in_any_order():
    """Compiled for sm_80, warps in a random order: the same bits."""
    rng = np.random.default_rng(5)
    a, x = rng.standard_normal((36, 4200)).astype(np.float32), rng.standard_normal(4200).astype(np.float32)
    for solver, m, trans in (("row_block", 3, False), ("register_block", 3, False), ("register_block", 36, True)):
        results = []
        for emulated in (EmulatedDriver(), EmulatedDriver(A100, order="random", seed=7)):
            stored = np.ascontiguousarray(a[:m].T) if trans else a[:m]
            with driver.use(emulated):
                results.append(run(solver, "f32", stored, x, None, nan_filled((m,), "f32"), trans=trans))
        np.testing.assert_array_equal(*results)
