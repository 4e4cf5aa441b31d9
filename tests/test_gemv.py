"""gemv: every solver that the registry lists, against the definition."""

import dataclasses
import os
import tracemalloc
from functools import partial

import helpers
import numpy as np
import pytest
from helpers import (
    NUMPY_FLOATS,
    OUT_LAYOUTS,
    SEEDS,
    assert_close,
    assert_exact,
    caller_array,
    exact_integers,
    from_float64,
    has_module,
    in_library,
    input_layouts,
    lay_out,
    nan_filled,
    out_layouts,
    printed_with_threads,
    real_values,
    sizes,
    solver_names,
    to_float64,
)
from hypothesis import event, given, strategies as st

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.gemv.register_block import RegisterBlock
from numbaprims.dispatch.explain import problem_of
from numbaprims.ops import gemv as ops
from numbaprims.reference import gemv as reference

SOLVERS = solver_names("gemv")
DTYPES = NUMPY_FLOATS
# Of op(A): one vector and less, edges of vectors and groups of rows; several chunks of a row; columns that are kept in
# registers, in the first-level cache, and walked along.
SHAPES = [
    (1, 1), (1, 40), (40, 1), (2, 3), (7, 64), (64, 7), (33, 129), (130, 70), (9, 7000), (10, 784), (70, 600),
    (1100, 20), (300, 520),
]  # fmt: skip
forced = partial(helpers.forced, "gemv")
refused = partial(helpers.refused, "gemv")


def check_exact(solver, dtype, shapes):
    rng = np.random.default_rng(1)
    for m, n in shapes:
        for trans in (False, True):
            a = exact_integers((n, m) if trans else (m, n), dtype, n, rng)
            x, y = exact_integers((n,), dtype, n, rng), exact_integers((m,), dtype, n, rng)
            expected = reference.gemv(a, x, y=y, alpha=2.0, beta=-3.0, trans=trans)
            out = nan_filled((m,), dtype)
            with forced(solver):
                result = numbaprims.gemv(
                    caller_array(a, dtype), caller_array(x, dtype), y=caller_array(y, dtype), alpha=2.0, beta=-3.0,
                    trans=trans, out=in_library(out, dtype),
                )  # fmt: skip
            assert result.base is out or result is out
            assert_exact(out, expected, dtype, vacuous=not expected.any())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_exact(solver, dtype):
    """Integers whose sums are exact, plain and transposed: every solver, bit for bit."""
    check_exact(solver, dtype, SHAPES)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_memory(dtype, as_cpu):
    """What no cache holds comes row by row, or column by column, where these are short."""
    machine = dataclasses.replace(target.current(), l2=0, l3=0)
    as_cpu(machine)
    of = {}
    for m, n in ((131, 261), (263, 130), (70, 9001)):
        problem = problem_of("gemv", np.empty((m, n), np.float32), np.empty(n, np.float32))
        kernel = RegisterBlock().cut(problem, machine, 16).kernel
        of[n] = kernel.spec[2]
    assert of == {261: 1, 130: 1, 9001: 4}
    check_exact("register_block", dtype, ((131, 261), (263, 130), (70, 9001)))


@pytest.mark.parametrize("solver", SOLVERS)
@given(data=st.data(), seed=SEEDS)
def test_fuzz(solver, data, seed):
    """Shapes, layouts, types, scalars and y, with out full of NaN: within both bounds."""
    rng = np.random.default_rng(seed)
    draw = data.draw
    m, n, trans = draw(sizes(200)), draw(sizes(400)), draw(st.booleans())
    dtype = draw(st.sampled_from(DTYPES))
    alpha, beta = draw(st.sampled_from([1.0, -0.5, 2.0])), draw(st.sampled_from([0.0, 1.0, 0.25]))
    a = lay_out(real_values((n, m) if trans else (m, n), dtype, rng), draw(input_layouts()))
    x = lay_out(real_values((n,), dtype, rng), draw(input_layouts()))
    y = lay_out(real_values((m,), dtype, rng), draw(input_layouts()))
    out = nan_filled((m,), dtype, draw(out_layouts()))
    wide_a, wide_x = to_float64(a, dtype), to_float64(x, dtype)
    expected = reference.gemv(wide_a, wide_x, y=to_float64(y, dtype), alpha=alpha, beta=beta, trans=trans)
    largest = np.abs(wide_a).max() * np.abs(wide_x).max() * abs(alpha) * np.sqrt(n) + 4
    a, x, y, result = (in_library(z, dtype) for z in (a, x, y, out))
    call = {"y": y, "alpha": alpha, "beta": beta, "trans": trans, "out": result}
    if refused(solver, a, x, **call):
        event("refused")
        return
    with forced(solver):
        assert numbaprims.gemv(a, x, **call) is result
    bound = max(largest, np.abs(expected).max())
    assert_close(out, expected, k=n + 4, dtype=dtype, max_abs=bound, vacuous=True)
    assert np.isfinite(to_float64(out, dtype)).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_many_tiles(solver):
    """Sizes that are cut in tiles for several threads, and in chunks whose sums are combined."""
    rng = np.random.default_rng(2)
    for m, n in ((1030, 1100), (3, 100_001), (50_001, 5), (37, 9001), (5000, 257)):
        a = rng.standard_normal((m, n)).astype(np.float32)
        for trans in (False, True):
            x = rng.standard_normal(m if trans else n).astype(np.float32)
            with forced(solver):
                out = numbaprims.gemv(a, x, trans=trans)
            expected = reference.gemv(a, x, trans=trans)
            k = m if trans else n
            assert_close(out, expected, k=k, max_abs=max(np.abs(expected).max(), np.sqrt(k)))


def test_empty_and_k_zero():
    for dtype in (np.float64, np.float32, np.float16):
        assert numbaprims.gemv(np.ones((0, 5), dtype), np.ones(5, dtype)).shape == (0,)
        a, x = np.ones((4, 0), dtype), np.ones(0, dtype)
        np.testing.assert_array_equal(numbaprims.gemv(a, x), np.zeros(4, dtype))
        np.testing.assert_array_equal(numbaprims.gemv(np.ones((0, 4), dtype), x, trans=True), np.zeros(4, dtype))
        y = np.arange(4, dtype=dtype)
        np.testing.assert_array_equal(numbaprims.gemv(a, x, y=y, beta=2.0), 2 * y)
        for solver in SOLVERS:
            with forced(solver):
                np.testing.assert_array_equal(numbaprims.gemv(a, x, y=y, beta=2.0), 2 * y)
                np.testing.assert_array_equal(numbaprims.gemv(a.T, x, y=y, beta=2.0, trans=True), 2 * y)


@pytest.mark.parametrize("solver", SOLVERS)
def test_y_is_out_and_y_is_not_read_with_beta_zero(solver):
    rng = np.random.default_rng(3)
    a, x = rng.standard_normal((90, 300)).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    y = rng.standard_normal(90).astype(np.float32)
    with forced(solver):
        for _ in range(2):  # the long way, then the short one
            expected = reference.gemv(a, x, y=y, alpha=-0.5, beta=0.5)
            assert numbaprims.gemv(a, x, y=y, alpha=-0.5, beta=0.5, out=y) is y
            assert_close(y, expected, k=300)
            nan = np.full(90, np.nan, np.float32)
            assert np.isfinite(numbaprims.gemv(a, x, y=nan, beta=0.0)).all()


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_nan_and_infinity_go_through(solver, trans):
    a, x = np.ones((120, 90), np.float32), np.ones(90, np.float32)
    a[3, 4], a[119, 89], a[7, 5], x[17] = np.nan, np.inf, -np.inf, 2
    stored = np.ascontiguousarray(a.T) if trans else a
    with forced(solver):
        out = numbaprims.gemv(stored, x, trans=trans)
    assert np.isnan(out[3]) and out[119] == np.inf and out[7] == -np.inf
    assert (np.delete(out, [3, 7, 119]) == 91).all()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bf16"])
def test_bits_do_not_depend_on_where_a_begins(dtype):
    """Vectors of A are aligned by a head; the order of the sums stays that of an aligned matrix."""
    rng = np.random.default_rng(4)
    for m, n, trans in ((13, 1300, False), (700, 90, True), (40, 1100, True)):
        values = real_values((m, n), dtype, rng)
        x = in_library(real_values((m if trans else n,), dtype, rng), dtype)
        found = set()
        for offset in range(17):
            flat = np.empty(m * n + 17, values.dtype)
            a = flat[offset : offset + m * n].reshape(m, n)
            a[...] = values
            for solver in ("register_block", "row_block"):
                with forced(solver):
                    found.add((solver, numbaprims.gemv(in_library(a, dtype), x, trans=trans).tobytes()))
        assert len(found) == 2


@pytest.mark.cpu
@pytest.mark.parametrize("layout", OUT_LAYOUTS)
def test_strided_calls_allocate_only_their_workspace(layout):
    """Any strides are read where they lie: no copy of an input is made."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((300, 400)).astype(np.float32)
    a, x = lay_out(values, layout), lay_out(values[0].copy(), layout)
    out = nan_filled((300,), "f32", layout)
    for _ in range(3):  # compiles, grows the workspace, is known to native code
        numbaprims.gemv(a, x, out=out)
    tracemalloc.start()
    numbaprims.gemv(a, x, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000  # the matrix has 480,000 bytes
    assert_close(out, values.astype(np.float64) @ values[0], k=400)


def test_bad_input_is_refused_before_anything_is_written():
    a, x, y = np.ones((4, 5), np.float32), np.ones(5, np.float32), np.ones(4, np.float32)
    out = np.full(4, 7, np.float32)
    square, base = np.ones((4, 4), np.float32), np.ones(8, np.float32)
    cases = [
        (ValueError, "4 x 5 and x has 4", lambda: numbaprims.gemv(a, y, out=out)),
        (ValueError, "5 x 4 and x has 5", lambda: numbaprims.gemv(a, x, trans=True)),
        (TypeError, "one dtype", lambda: numbaprims.gemv(a, x.astype(np.float64), out=out)),
        (TypeError, "list", lambda: numbaprims.gemv([[1.0]], x, out=out)),
        (TypeError, "int8 array", lambda: numbaprims.gemv(a.astype(np.int8), x.astype(np.int8))),
        (TypeError, "complex64", lambda: numbaprims.gemv(a.astype(np.complex64), x)),
        (ValueError, "gemm for a stack", lambda: numbaprims.gemv(a[None], x, out=out)),
        (ValueError, "gemm for several", lambda: numbaprims.gemv(a, x[:, None], out=out)),
        (ValueError, "beta is 1.0 and y", lambda: numbaprims.gemv(a, x, beta=1.0, out=out)),
        (ValueError, "the result has shape", lambda: numbaprims.gemv(a, x, y=x, beta=1.0, out=out)),
        (TypeError, "y a float64", lambda: numbaprims.gemv(a, x, y=y.astype(np.float64), beta=1.0, out=out)),
        (ValueError, "shape", lambda: numbaprims.gemv(a, x, out=np.ones(5, np.float32))),
        (TypeError, "float64", lambda: numbaprims.gemv(a, x, out=np.ones(4))),
        (ValueError, "shares memory with x", lambda: numbaprims.gemv(square, y, out=y)),
        (ValueError, "shares memory with a", lambda: numbaprims.gemv(square, y, out=square[1])),
        (ValueError, "shares memory with y", lambda: numbaprims.gemv(a, x, y=base[1:5], beta=1.0, out=base[:4])),
        (TypeError, "endian", lambda: numbaprims.gemv(a.astype(">f4"), x, out=out)),
        (TypeError, "alpha is 'x'", lambda: numbaprims.gemv(a, x, alpha="x", out=out)),
        (TypeError, "beta is None", lambda: numbaprims.gemv(a, x, beta=None, out=out)),
    ]  # fmt: skip
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()
    assert (out == 7).all() and (square == 1).all() and (y == 1).all() and (base == 1).all()


@pytest.mark.cpu
def test_the_short_way_checks_out_too():
    """The second call of a kind takes the short way, the third one native code; they refuse what the first does."""
    ops._gemv._known_calls._tables.clear()
    ops._gemv._launchers.clear()
    a, x = np.ones((8, 8), np.float32), np.ones(8, np.float32)
    a[0, 1] = 2
    out, y = np.empty(8, np.float32), np.ones(8, np.float32)
    for _ in range(4):
        for trans, first in ((False, [9, 8]), (True, [8, 9])):
            numbaprims.gemv(a, x, trans=trans, out=out)
            np.testing.assert_array_equal(out[:2], first)
            np.testing.assert_array_equal(numbaprims.gemv(a, x, trans=trans, alpha=2.0)[:2], np.array(first) * 2)
        numbaprims.gemv(a, x, y=y, beta=1.0, out=out)
        assert (out[2:] == 9).all()
    assert len(ops._gemv._known_calls._tables) == 2
    for view in (a[::-1], a.T, np.asfortranarray(a), a[:, ::-1], a[::2, ::2]):
        ones, want = np.ones(len(view), np.float32), view.astype(np.float64).sum(1)
        for _ in range(3):
            np.testing.assert_array_equal(numbaprims.gemv(view, ones, out=out[: len(view)]), want)
    a[0, 1] = 1
    with pytest.raises(ValueError, match="shares memory with x"):
        numbaprims.gemv(a, x, out=x)
    with pytest.raises(ValueError, match="shares memory with a"):
        numbaprims.gemv(a, x, out=a[0])
    both = np.ones(9, np.float32)
    with pytest.raises(ValueError, match="shares memory with y"):
        numbaprims.gemv(a, x, y=both[1:], beta=1.0, out=both[:8])
    assert (both == 1).all()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        numbaprims.gemv(a, x, out=out)
    packed = np.zeros((8, 8), np.dtype([("pad", "u1"), ("x", "<f4")]))
    packed["x"] = 1
    np.testing.assert_array_equal(numbaprims.gemv(packed["x"], x), np.full(8, 8, np.float32))
    for alpha in (2, np.float32(2), np.array(2.0)):
        np.testing.assert_array_equal(numbaprims.gemv(a, x, alpha=alpha), np.full(8, 16, np.float32))


@pytest.mark.cpu
def test_solvers_are_named_and_explain_themselves():
    a, x = np.ones((50, 50), np.float32), np.ones(50, np.float32)
    with pytest.raises(ValueError, match="no solver 'fastest'"), forced("fastest"):
        numbaprims.gemv(a, x)
    with pytest.raises(ValueError, match="neither the rows nor the columns"), forced("row_block"):
        numbaprims.gemv(a[::2, ::2], x[::2])
    table = numbaprims.explain("gemv", a, x)
    assert {row.solver for row in table} == set(SOLVERS)
    assert table.chosen.solver == "register_block" and table.chosen.refusal is None
    assert os.path.exists(table.chosen.source) and table.chosen.line > 0


def test_naive_is_never_chosen(device):
    """For no shape of the bench suites, and no stride, does the choice fall on the last resort."""
    able = {"register_block"} if device == "cpu" else {"register_block", "row_block"}
    sizes = [256, 512, 1024, 4096]
    shapes = [(1, 1), (8, 8), *((n, n) for n in sizes), *((m, n) for m in (128, 256) for n in (256, 16384))]
    for m, n in shapes:
        for dtype in (np.float64, np.float32, np.float16):
            a, x = np.broadcast_to(dtype(1), (m, n)), np.ones(n, dtype)
            stored = np.lib.stride_tricks.as_strided(a, (m, n), (n * a.itemsize, a.itemsize))
            for matrix in (a, stored, stored.T[:, :]):
                vector = x if matrix.shape[1] == n else np.ones(m, dtype)
                assert numbaprims.explain("gemv", matrix, vector).chosen.solver in able, (m, n, dtype)


def test_verbose_prints_a_command(capfd):
    a, x = np.ones((4, 6), np.float32), np.ones(4, np.float32)
    with numbaprims.config(verbose=1):
        for _ in range(2):
            numbaprims.gemv(a, x, trans=True)
    lines = [line for line in capfd.readouterr().err.splitlines() if "bench gemv" in line]
    assert len(lines) == 2 and "--shapes 4x6 --dtype f32 --trans-a" in lines[0]


def test_reference_device():
    rng = np.random.default_rng(6)
    a, x = rng.standard_normal((20, 30)).astype(np.float32), rng.standard_normal(20).astype(np.float32)
    with numbaprims.config(device="reference"):
        out = numbaprims.gemv(a, x, trans=True)
    np.testing.assert_array_equal(out, reference.gemv(a, x, trans=True).astype(np.float32))


BITS = """
import hashlib, numpy as np, numbaprims
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for m, n in ((520, 520), (5, 60000), (60000, 9), (100, 3000), (600, 900), (1100, 250)):
    a = rng.standard_normal((m, 2 * n)).astype("f4")
    for matrix in (a[:, :n], a[:, ::2]):
        for trans in (False, True):
            x = rng.standard_normal(m if trans else n).astype("f4")
            for solver in ("register_block", "row_block", "naive"):
                for _ in range(2):
                    try:
                        with numbaprims.config(algorithm={"gemv": solver}):
                            digest.update(numbaprims.gemv(matrix, x, trans=trans).tobytes())
                    except ValueError:
                        assert solver == "row_block"
print(digest.hexdigest())
"""


@pytest.mark.cpu
def test_same_bits_for_every_thread_count():
    assert len(printed_with_threads(BITS)) == 1


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_torch():
    import torch

    torch.manual_seed(0)
    a, x, y = torch.randn(40, 70), torch.randn(70), torch.randn(40)
    for _ in range(2):
        out = numbaprims.gemv(a, x, y=y, beta=0.5)
        assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
        torch.testing.assert_close(out, torch.addmv(y, a, x, beta=0.5), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(numbaprims.gemv(a, y, trans=True), a.T @ y, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(numbaprims.gemv(a.T, y), a.T @ y, rtol=1e-5, atol=1e-4)
        assert numbaprims.gemv(a, x, y=y, beta=1.0, out=y) is y
        # the launcher that tensors have bound serves arrays too
        assert type(numbaprims.gemv(a.numpy(), x.numpy())) is np.ndarray
    half = numbaprims.gemv(a.bfloat16(), x.bfloat16())
    assert half.dtype == torch.bfloat16
    expected = from_float64(to_float64(a.bfloat16()) @ to_float64(x.bfloat16()), "bf16")
    assert_close(half, to_float64(expected, "bf16"), k=70)
    with pytest.raises(TypeError, match="requires grad"):
        numbaprims.gemv(a.requires_grad_(), x)
    with pytest.raises(TypeError, match="one library"):
        numbaprims.gemv(a.detach(), x.numpy())
