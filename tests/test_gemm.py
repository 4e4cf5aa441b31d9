"""gemm, linear and plans: every solver that the registry lists, against the definition."""

import dataclasses
import math
import pickle
import re
import threading
from functools import partial

import helpers
import numpy as np
import pytest
from assembly import kernel_assembly, named
from helpers import (
    FLOATS,
    NUMPY_FLOATS,
    OUT_LAYOUTS,
    SEEDS,
    assert_close,
    assert_exact,
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
from numbaprims.cpu.gemm.solvers import dot_kind
from numbaprims.cpu.simd.dot import dot_feature
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.ops import gemm_plan
from numbaprims.reference import gemm as reference

SOLVERS = solver_names("gemm")
DTYPES = [*NUMPY_FLOATS, "i8"]
SHAPES = [
    (1, 1, 1), (1, 17, 5), (5, 1, 40), (2, 3, 4), (14, 32, 8), (15, 33, 9), (7, 100, 3), (97, 64, 33), (40, 40, 300),
    (200, 9, 70), (3, 200, 70), (170, 70, 129), (30, 49, 50), (9, 10, 20),
]  # fmt: skip
forced = partial(helpers.forced, "gemm")
refused = partial(helpers.refused, "gemm")


def accumulated(dtype):
    return "i32" if dtype in ("i8", "u8") else dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_exact(solver, dtype):
    """Integers whose sums are exact: every solver, both transpositions, bit for bit."""
    rng = np.random.default_rng(1)
    ran = 0
    for m, n, k in SHAPES:
        for trans_a, trans_b in ((False, False), (True, False), (False, True), (True, True)):
            a = exact_integers((k, m) if trans_a else (m, k), dtype, k, rng)
            b = exact_integers((n, k) if trans_b else (k, n), dtype, k, rng)
            expected = reference.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
            if dtype in FLOATS:
                a, b = (in_library(from_float64(x, dtype), dtype) for x in (a, b))
            why = refused(solver, a, b, trans_a=trans_a, trans_b=trans_b)
            if why:
                continue
            ran += 1
            out_storage = nan_filled((m, n), accumulated(dtype))
            out = in_library(out_storage, accumulated(dtype)) if dtype in FLOATS else out_storage
            with forced(solver):
                assert numbaprims.gemm(a, b, trans_a=trans_a, trans_b=trans_b, out=out) is out
            assert_exact(out_storage, expected, accumulated(dtype), vacuous=not expected.any())
    if not ran:
        pytest.skip(f"{solver} refuses {dtype}: {why}")


@pytest.mark.parametrize("solver", SOLVERS)
@given(data=st.data(), seed=SEEDS)
def test_fuzz(solver, data, seed):
    """Shapes, layouts, types, scalars, bias and C, with out full of NaN: within both bounds."""
    rng = np.random.default_rng(seed)
    draw = data.draw
    m, n, k = draw(sizes(90)), draw(sizes(90)), draw(sizes(150))
    dtype = draw(st.sampled_from([d for d in DTYPES if d in FLOATS]))
    alpha, beta = draw(st.sampled_from([1.0, -0.5, 2.0])), draw(st.sampled_from([0.0, 1.0, 0.25]))
    bias_kind = draw(st.sampled_from(["none", "n", "m"]))
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    a = lay_out(real_values((k, m) if trans_a else (m, k), dtype, rng), draw(input_layouts()))
    b = lay_out(real_values((n, k) if trans_b else (k, n), dtype, rng), draw(input_layouts()))
    c = lay_out(real_values((m, n), dtype, rng), draw(input_layouts()))
    bias = None if bias_kind == "none" else real_values((n,) if bias_kind == "n" else (m, 1), dtype, rng)
    out = nan_filled((m, n), dtype, draw(out_layouts()))
    expected = reference.gemm(
        to_float64(a, dtype), to_float64(b, dtype), c=to_float64(c, dtype), alpha=alpha, beta=beta, trans_a=trans_a,
        trans_b=trans_b, bias=None if bias is None else to_float64(bias, dtype),
    )  # fmt: skip
    largest = np.abs(to_float64(a, dtype)).max() * np.abs(to_float64(b, dtype)).max() * abs(alpha) * np.sqrt(k) + 4
    call = {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b}
    arrays = {name: None if x is None else in_library(x, dtype) for name, x in (("c", c), ("bias", bias), ("out", out))}
    a, b = in_library(a, dtype), in_library(b, dtype)
    if refused(solver, a, b, **call, **arrays):
        event("refused")
        return
    with forced(solver):
        numbaprims.gemm(a, b, **call, **arrays)
    assert_close(out, expected, k=k + 4, dtype=dtype, max_abs=max(largest, np.abs(expected).max()), vacuous=True)
    assert np.isfinite(to_float64(out, dtype)).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_many_blocks(solver):
    """More than one block in every dimension, and rows that are no multiple of a tile."""
    rng = np.random.default_rng(2)
    for m, n, k in ((337, 1100, 900), (20, 4500, 700), (500, 12, 1100), (9, 600, 1500)):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        if solver == "naive" and m * n * k > 1e8:
            continue
        if refused(solver, a, b):
            continue
        with forced(solver):
            out = numbaprims.gemm(a, b)
        assert_close(out, reference.gemm(a, b), k=k)


@pytest.mark.parametrize("pair", [("i8", "i8"), ("u8", "i8")])
def test_int8_extremes(pair):
    """-128 and 255 everywhere: what saturating instructions get wrong."""
    kinds = {"i8": np.int8, "u8": np.uint8}
    low, high = (
        np.full((40, 260), np.iinfo(kinds[pair[0]]).min),
        np.full((40, 260), np.iinfo(kinds[pair[0]]).max),
    )
    for values in (low, high):
        a = values.astype(kinds[pair[0]])
        for other in (-128, 127):
            b = np.full((260, 50), other, np.int8)
            out = numbaprims.gemm(a, b)
            assert out.dtype == np.int32
            np.testing.assert_array_equal(out, a.astype(np.int64) @ b.astype(np.int64))
    rng = np.random.default_rng(3)
    for m, n, k in ((1, 1, 1), (33, 47, 65), (100, 3, 259), (16, 16, 4)):
        a = rng.integers(np.iinfo(kinds[pair[0]]).min, np.iinfo(kinds[pair[0]]).max + 1, (m, k)).astype(kinds[pair[0]])
        b = rng.integers(-128, 128, (k, n)).astype(np.int8)
        bias = rng.integers(-1000, 1000, n).astype(np.int32)
        expected = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(numbaprims.gemm(a, b), expected)
        np.testing.assert_array_equal(numbaprims.gemm(a, np.ascontiguousarray(b.T), trans_b=True), expected)
        got = numbaprims.gemm(a, b, bias=bias, activation="relu")
        np.testing.assert_array_equal(got, np.maximum(expected + bias, 0))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("cpu", "kind", "group", "opcode"),
    [("znver5", "u8s8", 4, "vpdpbusd"), ("znver5", "bf16", 2, "vdpbf16ps"), ("cascadelake", "u8s8", 4, "vpdpbusd"),
     ("sapphirerapids", "bf16", 2, "vdpbf16ps"), ("arrowlake", "s8s8", 4, "vpdpbssd"),
     ("sierraforest", "s8s8", 4, "vpdpbssd")],
)  # fmt: skip
def test_dot_instructions_are_in_the_inner_loop(cpu, kind, group, opcode):
    """int8 and bf16 are not widened to float32 where the CPU multiplies them itself."""
    from numbaprims.cpu.gemm.vnni import make_multiply_vnni

    MR, W = (6, 8) if kind == "s8s8" else (14, 16)
    text = kernel_assembly(cpu, make_multiply_vnni, kind, MR, 2, W, group, False)
    assert text.count(opcode) >= 4 * 2 * MR, "four steps of all sums"
    assert "vfmadd" not in text


@pytest.mark.cpu
def test_bfloat16_is_widened_where_dot_instructions_are_slower_than_multiply_adds(rng, as_cpu):
    """An Intel core's take as long as four of those, an AMD one's as one."""
    pytest.importorskip("ml_dtypes")
    a, b = (helpers.caller_array(rng.standard_normal((70, 70)), "bf16") for _ in "ab")
    problem = problem_of("gemm", a, b)
    blocked = next(each for each in registry.solvers("gemm", "cpu") if each.name == "blocked")
    able = dot_feature("bf16", 16) != "portable"
    for cpu, dots in (("znver5", 2.0), ("sapphirerapids", 0.5)):
        of = named(cpu)
        assert of.rates.dots == dots
        assert dot_kind(problem, of) == ("bf16" if able and dots > 1 else None)
        assert blocked.panels(problem, of)[:2] == ((2, 2) if able and dots > 1 else (4, 1))
        as_cpu(dataclasses.replace(target.current(), measured=target.current().rates._replace(dots=dots)))
        with helpers.forced("gemm", "blocked"):
            assert_close(numbaprims.gemm(a, b), to_float64(a) @ to_float64(b), k=70)


@pytest.mark.cpu
def test_tiles_of_16_registers_stay_in_them():
    """A strided A once put 32 operands of 48 multiply-adds on the stack."""
    from numbaprims.cpu.gemm.multiply import make_direct

    text = kernel_assembly("x86-64-v3", make_direct, "f32", "f32", "f32", 6, 2, 8, False, 1)
    block = max(re.split(r"^(?=\.LBB)", text, flags=re.MULTILINE), key=lambda part: part.count("vfmadd"))
    assert block.count("vfmadd") == 4 * 12
    assert not re.search(r"\(%rsp\).*%ymm|%ymm\d+, -?\d*\(%rsp\)", block), block


@pytest.mark.cpu
@pytest.mark.parametrize("every", [1, 4])
def test_a_matrix_in_memory_is_asked_for_between_products(every):
    """In one burst before a tile 35 x 8457 x 2560 took 1.4 times as long."""
    from numbaprims.cpu.gemm.multiply import make_direct

    text = kernel_assembly("znver4", make_direct, "f32", "f32", "f32", 8, 2, 16, False, every)
    block = max(re.split(r"^(?=\.LBB)", text, flags=re.MULTILINE), key=lambda part: part.count("vfmadd"))
    assert block.count("vfmadd") == 4 * 16 and block.count("prefetcht1") == 2 * every, block


@pytest.mark.parametrize(("dtype", "added"), [(np.int8, 0), (np.uint8, -128)])
def test_signed_dot_products_have_the_same_bits(dtype, added, monkeypatch):
    """What a CPU runs that multiplies signed bytes (AVX-VNNI-INT8, ARM's sdot), here in the portable form."""
    from numbaprims.cpu.gemm import dots, solvers
    from numbaprims.cpu.simd.tiles import dot, dot_columns

    rng = np.random.default_rng(5)
    low = np.iinfo(dtype).min
    a, b = rng.integers(low, low + 256, (2, 70)).astype(dtype), rng.integers(-128, 128, (70, 45)).astype(np.int8)
    a[0], b[:, 0] = low, -128
    for module in (solvers, dots):
        monkeypatch.setattr(module, "byte_kind", lambda signed, lanes: ("s8s8", added))
    for module in (dot, dot_columns):
        monkeypatch.setattr(module, "dot_feature", lambda kind, lanes: "portable")
    with forced("dots"):
        assert (numbaprims.gemm(a, b) == a.astype(np.int64) @ b).all()
    assert (numbaprims.gemm.plan(b)(a) == a.astype(np.int64) @ b).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_batches(solver):
    """Leading dimensions broadcast against each other; strided and reversed batches."""
    rng = np.random.default_rng(4)
    cases = [((3, 5, 7), (7, 4)), ((2, 1, 5, 7), (3, 7, 4)), ((5, 7), (3, 7, 4)), ((6, 1, 8), (6, 8, 40)),
        ((2, 3, 20, 30), (2, 3, 30, 10)), ((2, 20, 30), (30, 18))]  # fmt: skip
    for shape_a, shape_b in cases:
        a, b = (
            rng.standard_normal(shape_a).astype(np.float32),
            rng.standard_normal(shape_b).astype(np.float32),
        )
        for x, y in ((a, b), (a[::-1], b), (np.asfortranarray(a), np.asfortranarray(b))):
            if refused(solver, x, y):
                continue
            with forced(solver):
                out = numbaprims.gemm(x, y)
                into = np.full(out.shape, np.nan, np.float32, order="F")
                numbaprims.gemm(x, y, out=into)
            expected = np.matmul(x.astype(np.float64), y.astype(np.float64))
            assert_close(out, expected, k=x.shape[-1])
            np.testing.assert_array_equal(into, out) if not refused(solver, x, y, out=into) else None


def test_empty_and_k_zero():
    for m, n in ((0, 5), (5, 0), (0, 0)):
        assert numbaprims.gemm(np.ones((m, 3), np.float32), np.ones((3, n), np.float32)).shape == (m, n)
    assert numbaprims.gemm(np.ones((0, 2, 3), np.float32), np.ones((3, 4), np.float32)).shape == (0, 2, 4)
    for dtype in (np.float64, np.float32, np.float16):
        a, b = np.ones((4, 0), dtype), np.ones((0, 6), dtype)
        np.testing.assert_array_equal(numbaprims.gemm(a, b), np.zeros((4, 6), dtype))
        c, bias = np.full((4, 6), 3, dtype), np.arange(6, dtype=dtype)
        np.testing.assert_array_equal(numbaprims.gemm(a, b, c=c, beta=2.0, bias=bias), 6 + np.tile(bias, (4, 1)))


def test_c_is_out_and_c_is_not_read_with_beta_zero():
    rng = np.random.default_rng(5)
    a, b = (
        rng.standard_normal((50, 300)).astype(np.float32),
        rng.standard_normal((300, 60)).astype(np.float32),
    )
    w = rng.standard_normal((50, 60)).astype(np.float32)
    expected = reference.gemm(a, b, c=w, alpha=-0.1, beta=1.0)
    assert numbaprims.gemm(a, b, c=w, alpha=-0.1, beta=1.0, out=w) is w
    assert_close(w, expected, k=300)
    nan = np.full((50, 60), np.nan, np.float32)
    assert np.isfinite(numbaprims.gemm(a, b, c=nan, beta=0.0)).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_nan_and_infinity_go_through(solver):
    a, b = np.ones((20, 30), np.float32), np.ones((30, 50), np.float32)
    a[3, 4], b[7, 9] = np.nan, np.inf
    if refused(solver, a, b):
        pytest.skip(refused(solver, a, b))
    with forced(solver):
        out = numbaprims.gemm(a, b)
    assert np.isnan(out[3]).all()
    assert np.isinf(np.delete(out, 3, 0)[:, 9]).all()
    assert (np.delete(np.delete(out, 3, 0), 9, 1) == 30).all()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d in FLOATS])
@pytest.mark.parametrize("solver", SOLVERS)
def test_activation_and_bias_are_fused(solver, dtype):
    rng = np.random.default_rng(6)
    a, b, bias = (real_values(shape, dtype, rng) for shape in ((37, 50), (50, 81), (81,)))
    for activation in (
        "relu",
        "sigmoid",
        ("leaky_relu", {"negative_slope": 0.2}),
        ("gelu", {"approximate": "tanh"}),
    ):
        expected = reference.gemm(
            *(to_float64(x, dtype) for x in (a, b)), bias=to_float64(bias, dtype), activation=activation
        )
        given_arrays = [in_library(x, dtype) for x in (a, b)]
        if refused(solver, *given_arrays):
            pytest.skip(f"{solver} refuses {dtype}: {refused(solver, *given_arrays)}")
        with forced(solver):
            out = numbaprims.gemm(*given_arrays, bias=in_library(bias, dtype), activation=activation)
        assert_close(out, expected, k=60, max_abs=30.0)


def test_out_dtype_keeps_the_float32_sums():
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((40, 40)).astype(np.float16) for _ in range(2))
    out = numbaprims.gemm(a, b, out_dtype="f32")
    assert out.dtype == np.float32
    assert_close(out, a.astype(np.float64) @ b.astype(np.float64), k=40)
    with pytest.raises(TypeError, match="out_dtype"):
        numbaprims.gemm(a, b, out_dtype="f64")


@pytest.mark.cpu
@pytest.mark.parametrize("layout", OUT_LAYOUTS)
def test_strided_calls_allocate_only_their_workspace(layout):
    """Packing reads any strides: no copy of an input is made."""
    import tracemalloc

    rng = np.random.default_rng(8)
    a = lay_out(rng.standard_normal((300, 400)).astype(np.float32), layout)
    b = lay_out(rng.standard_normal((400, 300)).astype(np.float32), layout)
    out = nan_filled((300, 300), "f32", layout)
    for _ in range(3):  # compiles, grows the workspace, is known to native code
        numbaprims.gemm(a, b, out=out)
    tracemalloc.start()
    numbaprims.gemm(a, b, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000  # the smallest input has 480,000 bytes
    assert_close(out, np.matmul(a.astype(np.float64), b), k=400)


def test_naive_is_never_chosen():
    """For no shape of the bench suites does the choice fall on the last resort."""
    shapes = [(m, m, m) for m in (16, 64, 256, 1024)]
    shapes += [(64, 3136, 576), (3000, 7, 2048), (1, 4096, 1024), (10, 10000, 64)]
    for m, n, k in shapes:
        for dtype in (np.float64, np.float32, np.float16, np.int8):
            a, b = np.zeros((m, k), dtype), np.zeros((k, n), dtype)
            assert numbaprims.explain("gemm", a, b).chosen.solver != "naive", (m, n, k, dtype)
            b_t = np.zeros((n, k), dtype)
            assert numbaprims.explain("gemm", a, b_t, trans_b=True).chosen.solver != "naive", (m, n, k, dtype)


def test_linear():
    rng = np.random.default_rng(10)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4, 20), (30, 20), (30,)))
    assert_close(numbaprims.linear(x, w, bias), reference.linear(x, w, bias), k=21)
    assert_close(numbaprims.linear(x[0, 0], w, bias), reference.linear(x[0, 0][None], w, bias)[0], k=21)
    out = np.empty((3, 4, 30), np.float32)
    assert numbaprims.linear(x, w, bias, out=out) is out
    assert numbaprims.explain("linear", x[0, 0], w, bias, out=out[0, 0]).problem.m == 1
    for call, error, words in (
        (([1.0], w), TypeError, "x is a list"), ((x, None), TypeError, "weight is a NoneType"),
        ((x, w.T), ValueError, r"columns of op\(x\) .* rows of op\(weight\)"),
        ((x, w, None), ValueError, "activation: kind is 'none'; it must be one of"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            numbaprims.linear(*call, activation="none" if len(call) == 3 else None)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d in FLOATS])
def test_plan(dtype):
    rng = np.random.default_rng(11)
    b, bias = real_values((90, 70), dtype, rng), real_values((70,), dtype, rng)
    w, shift = in_library(b, dtype), in_library(bias, dtype)
    plan = numbaprims.gemm.plan(w, alpha=2.0, bias=shift)
    for m in (1, 14, 33):
        a = real_values((m, 90), dtype, rng)
        expected = reference.gemm(*(to_float64(x, dtype) for x in (a, b)), alpha=2.0, bias=to_float64(bias, dtype))
        for ready in (plan, pickle.loads(pickle.dumps(plan))):
            assert_close(ready(in_library(a, dtype)), expected, k=95, max_abs=60.0)
    before = to_float64(plan(in_library(a, dtype)))
    b[:] = 0  # the plan has its own copy
    np.testing.assert_array_equal(to_float64(plan(in_library(a, dtype))), before)
    plan.update(in_library(b, dtype))
    assert_exact(plan(in_library(a, dtype)), np.broadcast_to(to_float64(bias, dtype), (m, 70)))
    with pytest.raises(ValueError, match="this plan holds"):
        plan.update(in_library(b[:-1], dtype))
    with pytest.raises(ValueError, match="kind is 'relux'"):  # here, not at a first call
        numbaprims.gemm.plan(w, activation="relux")


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [1, 200])
def test_a_plan_packs_where_that_pays(rows, monkeypatch):
    """A plain call's solver reads the plan's own copy; which way is taken, estimates say."""
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((rows, 300)).astype(np.float32), rng.standard_normal((300, 400)).astype(np.float32)
    bias = rng.standard_normal(400).astype(np.float32)
    for below, packs in ((0.0, True), (math.inf, False)):
        monkeypatch.setattr(gemm_plan, "_PLAIN", below)
        plan = numbaprims.gemm.plan(b, bias=bias, activation="relu")
        for _ in range(4):
            np.testing.assert_allclose(plan(a), np.maximum(a @ b + bias, 0), rtol=1e-4, atol=1e-4)
        ((_, _, packed),) = plan._bound.values()
        assert (packed is not None) == packs


def test_plan_from_several_threads():
    rng = np.random.default_rng(12)
    b = rng.standard_normal((64, 64)).astype(np.float32)
    plan, wrong = numbaprims.gemm.plan(b), []

    def work(m):
        a = np.full((m, 64), m, np.float32)
        expected = a @ b
        wrong.extend(1 for _ in range(20) if not np.allclose(plan(a), expected, rtol=1e-4, atol=1e-2))

    threads = [threading.Thread(target=work, args=(m,)) for m in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


BITS = """
import hashlib, numpy as np, numbaprims
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for m, n, k in ((300, 700, 520), (64, 2000, 300), (3000, 7, 500), (1500, 16, 700), (5, 3000, 400)):
    a, b = rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")
    for solver in %r:
        for _ in range(2):
            try:
                with numbaprims.config(algorithm={"gemm": solver}):
                    digest.update(numbaprims.gemm(a, b).tobytes())
            except ValueError:
                pass
print(digest.hexdigest())
"""


@pytest.mark.cpu
def test_same_bits_for_every_thread_count():
    solvers = [name for name in SOLVERS if name != "naive"]
    assert len(printed_with_threads(BITS % solvers)) == 1


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_torch():
    import torch

    torch.manual_seed(0)
    x, w, b = torch.randn(8, 3, 20), torch.randn(30, 20), torch.randn(30)
    out = numbaprims.linear(x, w, b)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    torch.testing.assert_close(out, torch.nn.functional.linear(x, w, b), rtol=1e-4, atol=1e-4)
    half = numbaprims.gemm(x[0].bfloat16(), w.bfloat16(), trans_b=True)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, (x[0].bfloat16() @ w.bfloat16().T), rtol=2e-2, atol=2e-2)
    with pytest.raises(TypeError, match="requires grad"):
        numbaprims.linear(x.requires_grad_(), w, b)
    with pytest.raises(TypeError, match="one library"):
        numbaprims.gemm(w, w.numpy())
