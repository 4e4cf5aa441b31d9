"""ger: every solver that the registry lists, against the definition."""

import dataclasses
import os
import tracemalloc
from functools import partial

import helpers
import numpy as np
import pytest
from assembly import kernel_assembly
from helpers import (
    LAYOUTS,
    NUMPY_FLOATS,
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
from numbaprims.dispatch import registry
from numbaprims.ops import ger as ops
from numbaprims.reference import ger as reference

SOLVERS = solver_names("ger")
DTYPES = NUMPY_FLOATS
SHAPES = [(1, 1), (1, 40), (40, 1), (2, 3), (7, 64), (64, 7), (33, 129), (130, 70), (3, 9000), (9000, 3), (17, 527)]
forced = partial(helpers.forced, "ger")
refused = partial(helpers.refused, "ger")


@pytest.fixture
def small_caches(monkeypatch):
    """A CPU whose caches hold nothing: every matrix is beyond them."""
    tiny = dataclasses.replace(target.current(), l2=0, l3=0)
    monkeypatch.setattr(registry, "target", lambda device: tiny)
    for known in (ops._ger._launchers._bound, ops._ger._known_calls._tables):
        known.clear()
    yield
    for known in (ops._ger._launchers._bound, ops._ger._known_calls._tables):
        known.clear()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_exact(solver, dtype):
    """Integers: every solver, with and without a, C- and F-ordered, bit for bit."""
    rng = np.random.default_rng(1)
    for m, n in SHAPES:
        x, y, a = (exact_integers(shape, dtype, 4, rng) for shape in ((m,), (n,), (m, n)))
        for order in ("C", "F"):
            for added in (None, a):
                expected = reference.ger(x, y, a=added, alpha=-2.0)
                out = nan_filled((m, n), dtype, order)
                old = None if added is None else in_library(lay_out(from_float64(a, dtype), order), dtype)
                with forced(solver):
                    numbaprims.ger(
                        caller_array(x, dtype), caller_array(y, dtype), a=old, alpha=-2.0, out=in_library(out, dtype)
                    )
                assert_exact(out, expected, dtype, vacuous=not expected.any())


@pytest.mark.parametrize("solver", SOLVERS)
@given(data=st.data(), seed=SEEDS)
def test_fuzz(solver, data, seed):
    """Shapes, layouts, types and alpha, with out full of NaN: within both bounds."""
    rng = np.random.default_rng(seed)
    draw = data.draw
    m, n, dtype = draw(sizes(200)), draw(sizes(300)), draw(st.sampled_from(DTYPES))
    alpha, has_a = draw(st.sampled_from([1.0, -0.5, 0.1])), draw(st.booleans())
    x = lay_out(real_values((m,), dtype, rng), draw(input_layouts()))
    y = lay_out(real_values((n,), dtype, rng), draw(input_layouts()))
    a = lay_out(real_values((m, n), dtype, rng), draw(input_layouts())) if has_a else None
    out = nan_filled((m, n), dtype, draw(out_layouts()))
    expected = reference.ger(
        to_float64(x, dtype), to_float64(y, dtype), a=None if a is None else to_float64(a, dtype), alpha=alpha
    )
    x, y, result = (in_library(z, dtype) for z in (x, y, out))
    call = {"a": None if a is None else in_library(a, dtype), "alpha": alpha, "out": result}
    if refused(solver, x, y, **call):
        event("refused")
        return
    with forced(solver):
        assert numbaprims.ger(x, y, **call) is result
    assert_close(out, expected, k=3, dtype=dtype, vacuous=True)
    assert np.isfinite(to_float64(out, dtype)).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_many_tiles(solver):
    rng = np.random.default_rng(2)
    for m, n in ((800, 900), (3, 200_001), (200_001, 3)):
        x, y = rng.standard_normal(m).astype(np.float32), rng.standard_normal(n).astype(np.float32)
        with forced(solver):
            assert_close(numbaprims.ger(x, y), reference.ger(x, y), k=2)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])
def test_results_beyond_the_caches_are_streamed(small_caches, dtype):
    """Stores past the caches need aligned addresses, wherever rows begin."""
    rng = np.random.default_rng(3)
    x, y = real_values((40,), dtype, rng), real_values((421,), dtype, rng)
    expected = reference.ger(to_float64(x, dtype), to_float64(y, dtype))
    for layout in ("C", "offset", "padded", "negative", "F"):
        out = nan_filled((40, 421), dtype, layout)
        numbaprims.ger(in_library(x, dtype), in_library(y, dtype), out=in_library(out, dtype))
        assert_close(out, expected, k=2, dtype=dtype)


@pytest.mark.cpu
@pytest.mark.parametrize(("cpu", "width"), [("znver5", 16), ("x86-64-v3", 8)])
def test_streams_pass_the_caches_by(cpu, width):
    from numbaprims.cpu.ger.rows import make_rows

    text = kernel_assembly(cpu, make_rows, "f32", width, 1, False, True)
    assert "vmovntps" in text and "sfence" in text


@pytest.mark.parametrize(
    "layout", [layout for layout in LAYOUTS if layout not in ("broadcast", "readonly", "unaligned")]
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_is_out(solver, layout):
    """The update in place, ``ger(x, y, a=w, out=w)``: the long way, then the short one."""
    rng = np.random.default_rng(4)
    w = lay_out(rng.standard_normal((50, 70)).astype(np.float32), layout)
    x, y = rng.standard_normal(50).astype(np.float32), rng.standard_normal(70).astype(np.float32)
    if refused(solver, x, y, a=w, out=w):
        assert layout == "sliced"
        return
    with forced(solver):
        for _ in range(2):
            expected = reference.ger(x, y, a=w, alpha=-0.1)
            assert numbaprims.ger(x, y, a=w, alpha=-0.1, out=w) is w
            assert_close(w, expected, k=2)
        twin = w[:]  # the same elements under another name
        expected = reference.ger(x, y, a=w)
        numbaprims.ger(x, y, a=w, out=twin)
        assert_close(w, expected, k=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_is_out_again_and_again(dtype):
    """New arrays of one kind: the first call, those that find its launcher, and those of native code."""
    for _ in range(5):
        w, x, y = (caller_array(np.full(shape, 2.0), dtype) for shape in ((3, 17), (3,), (17,)))
        assert numbaprims.ger(x, y, a=w, out=w) is w
        np.testing.assert_array_equal(to_float64(w), np.full((3, 17), 6.0))


def test_without_out_a_is_left_alone():
    x, y = np.ones(4, np.float32), np.ones(5, np.float32)
    for a in (np.ones((4, 5), np.float32), np.ones((5, 4), np.float32).T):
        for _ in range(2):
            out = numbaprims.ger(x, y, a=a)
            assert (a == 1).all() and (out == 2).all() and out is not a


def test_empty():
    for m, n in ((0, 5), (5, 0), (0, 0)):
        x, y = np.ones(m, np.float32), np.ones(n, np.float32)
        assert numbaprims.ger(x, y).shape == (m, n)
        out = np.empty((m, n), np.float32)
        assert numbaprims.ger(x, y, a=out, out=out) is out


@pytest.mark.parametrize("solver", SOLVERS)
def test_nan_and_infinity_go_through(solver):
    x, y = np.ones(40, np.float32), np.ones(70, np.float32)
    a = np.ones((40, 70), np.float32)
    x[3], y[5], a[7, 9], x[11] = np.nan, np.inf, np.nan, 0
    with forced(solver):
        out = numbaprims.ger(x, y, a=a)
    assert np.isnan(out[3]).all() and np.isnan(out[7, 9]) and np.isnan(out[11, 5])
    rest = np.delete(out, [3, 7, 11], 0)
    assert (rest[:, 5] == np.inf).all() and (np.delete(rest, 5, 1) == 2).all()


@pytest.mark.cpu
def test_strided_calls_allocate_only_their_workspace():
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal(600).astype(np.float32)[::2], rng.standard_normal(800).astype(np.float32)[::-2]
    for out in (np.zeros((600, 800), np.float32)[::2, ::2], np.zeros((400, 300), np.float32).T):
        for _ in range(3):  # compiles, grows the workspace, is known to native code
            out[...] = 0
            numbaprims.ger(x, y, a=out, out=out)
        tracemalloc.start()
        numbaprims.ger(x, y, a=out, out=out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20_000  # the matrix has 480,000 bytes
        assert_close(out, 2 * np.outer(x.astype(np.float64), y), k=2)


def test_bad_input_is_refused_before_anything_is_written():
    x, y, a = np.ones(4, np.float32), np.ones(5, np.float32), np.ones((4, 5), np.float32)
    out, flat = np.full((4, 5), 7, np.float32), np.ones(30, np.float32)
    tied = np.lib.stride_tricks.as_strided(flat, (4, 5), (4, 4))
    cases = [
        (TypeError, "one dtype", lambda: numbaprims.ger(x, y.astype(np.float64), out=out)),
        (TypeError, "a float64", lambda: numbaprims.ger(x, y, a=a.astype(np.float64), out=out)),
        (TypeError, "list", lambda: numbaprims.ger([1.0], y, out=out)),
        (TypeError, "int8 array", lambda: numbaprims.ger(x.astype(np.int8), y.astype(np.int8))),
        (ValueError, "x is a float32 array .4, 5.; ger takes vectors", lambda: numbaprims.ger(a, y, out=out)),
        (ValueError, "y is a float32 array .4, 5.; ger takes vectors", lambda: numbaprims.ger(x, a, out=out)),
        (ValueError, "x and y make a matrix .4, 5.", lambda: numbaprims.ger(x, y, a=a.T, out=out)),
        (ValueError, "shape", lambda: numbaprims.ger(x, y, out=np.ones((5, 4), np.float32))),
        (TypeError, "float64", lambda: numbaprims.ger(x, y, out=np.ones((4, 5)))),
        (ValueError, "with x", lambda: numbaprims.ger(flat[:4], y, out=flat[:20].reshape(4, 5))),
        (ValueError, "with a", lambda: numbaprims.ger(
            x, y, a=flat[:20].reshape(4, 5), out=flat[10:].reshape(4, 5))),
        (ValueError, "one another", lambda: numbaprims.ger(x, y, out=tied)),
        (TypeError, "alpha is 'x'", lambda: numbaprims.ger(x, y, alpha="x", out=out)),
    ]  # fmt: skip
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()
    assert (out == 7).all() and (flat == 1).all()


@pytest.mark.cpu
def test_the_short_way_checks_out_too():
    """The second call of a kind takes the short way, the third one native code; they refuse what the first does."""
    ops._ger._known_calls._tables.clear()
    ops._ger._launchers.clear()
    x, y, out = np.ones(8, np.float32), np.ones(8, np.float32), np.zeros((8, 8), np.float32)
    for _ in range(4):
        numbaprims.ger(x, y, out=out)
        assert (out == 1).all()
        numbaprims.ger(x, y, a=out, out=out)
        assert (out == 2).all()
    assert len(ops._ger._known_calls._tables) == 2
    with pytest.raises(ValueError, match="shares memory with y"):
        numbaprims.ger(x, out[2], a=out, out=out)
    both = np.zeros((9, 8), np.float32)
    numbaprims.ger(x, y, a=out, out=both[:8])
    with pytest.raises(ValueError, match="shares memory with a"):
        numbaprims.ger(x, y, a=both[1:], out=both[:8])
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        numbaprims.ger(x, y, out=out)
    assert (out == 2).all()
    for alpha in (2, np.float32(2), np.array(2.0)):
        np.testing.assert_array_equal(numbaprims.ger(x, y, alpha=alpha), np.full((8, 8), 2, np.float32))


@pytest.mark.cpu
def test_solvers_are_named_and_explain_themselves():
    x, y, a = np.ones(50, np.float32), np.ones(50, np.float32), np.ones((50, 50), np.float32)
    with pytest.raises(ValueError, match="no solver 'fastest'"), forced("fastest"):
        numbaprims.ger(x, y)
    with pytest.raises(ValueError, match="neither the rows nor the columns"), forced("row_block"):
        numbaprims.ger(x[:25], y[:25], out=a[::2, ::2])
    with pytest.raises(ValueError, match="not contiguous along the same"), forced("register_block"):
        numbaprims.ger(x, y, a=a.T)
    table = numbaprims.explain("ger", x, y, a=a)
    assert {row.solver for row in table} == set(SOLVERS) and table.chosen.solver == "register_block"
    assert os.path.exists(table.chosen.source) and table.chosen.line > 0


def test_naive_is_never_chosen():
    """For no shape of the bench suites does the choice fall on the last resort."""
    for m, n in ((1, 1), (8, 8), (256, 256), (4096, 4096), (8192, 8192), (128, 8192), (256, 512)):
        for dtype in (np.float64, np.float32, np.float16):
            x, y = np.ones(m, dtype), np.ones(n, dtype)
            for a in (None, np.empty((m, n), dtype)):
                assert numbaprims.explain("ger", x, y, a=a, out=a).chosen.solver == "register_block"


def test_verbose_prints_a_command(capfd):
    x, y = np.ones(4, np.float32), np.ones(6, np.float32)
    with numbaprims.config(verbose=1):
        for _ in range(2):
            numbaprims.ger(x, y)
    lines = [line for line in capfd.readouterr().err.splitlines() if "bench ger" in line]
    assert len(lines) == 2 and "--shapes 4x6 --dtype f32" in lines[0]


def test_reference_device():
    rng = np.random.default_rng(6)
    x, y = rng.standard_normal(20).astype(np.float32), rng.standard_normal(30).astype(np.float32)
    with numbaprims.config(device="reference"):
        out = numbaprims.ger(x, y, alpha=0.3)
    np.testing.assert_array_equal(out, reference.ger(x, y, alpha=0.3).astype(np.float32))


BITS = """
import hashlib, numpy as np, numbaprims
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for m, n in ((520, 720), (5, 60000), (60000, 9)):
    x, y = rng.standard_normal(m).astype("f4"), rng.standard_normal(n).astype("f4")
    w = rng.standard_normal((m, n)).astype("f4")
    for solver in ("register_block", "row_block", "naive"):
        for a in (None, w, np.asfortranarray(w)):
            for _ in range(2):
                with numbaprims.config(algorithm={"ger": solver}):
                    digest.update(numbaprims.ger(x, y, a=a, alpha=0.1, out=None if a is None else a).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.cpu
def test_same_bits_for_every_thread_count():
    assert len(printed_with_threads(BITS)) == 1


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_torch():
    import torch

    torch.manual_seed(0)
    x, y, w = torch.randn(40), torch.randn(70), torch.randn(40, 70)
    for _ in range(2):
        out = numbaprims.ger(x, y, a=w, alpha=-0.5)
        assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
        torch.testing.assert_close(out, torch.addr(w, x, y, alpha=-0.5), rtol=1e-5, atol=1e-6)
        assert type(numbaprims.ger(x.numpy(), y.numpy())) is np.ndarray
        expected = torch.addr(w, x, y)
        assert numbaprims.ger(x, y, a=w, out=w) is w
        torch.testing.assert_close(w, expected, rtol=1e-5, atol=1e-6)
    half = numbaprims.ger(x.bfloat16(), y.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, torch.outer(x.bfloat16(), y.bfloat16()), rtol=1e-2, atol=1e-2)
    with pytest.raises(TypeError, match="requires grad"):
        numbaprims.ger(x.requires_grad_(), y)
    with pytest.raises(TypeError, match="one library"):
        numbaprims.ger(x.detach(), y.numpy())
