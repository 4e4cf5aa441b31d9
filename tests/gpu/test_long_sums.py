"""Sums of many terms on a GPU: no accumulator adds more than `TERMS` in order, whatever the length; in the emulator."""

import numpy as np
import pytest
from helpers import assert_exact, caller_array, to_float64
from ptx_emulator import launch

import numbaprims
from numbaprims.dispatch import call, registry
from numbaprims.gpu import parts
from numbaprims.gpu.conv import direct_weight, ending, implicit
from numbaprims.gpu.gemm import mma_solvers, solvers
from numbaprims.gpu.gemv import arguments
from numbaprims.gpu.memory import to_device

TERMS = 64
SOLVERS = {stem: [solver.name for solver in registry.solvers(stem, "cuda")] for stem in ("gemm", "gemv", "conv")}


@pytest.fixture
def short(gpu, monkeypatch):
    """Sums so short that tests have many, and cut for no other reason."""
    monkeypatch.setattr(parts, "TERMS", TERMS)
    for module in (solvers, mma_solvers, implicit, direct_weight):
        monkeypatch.setattr(module, "WANTED_BLOCKS", 1)
    monkeypatch.setattr(arguments, "BLOCKS", 1)
    call.forget()
    yield gpu
    call.forget()


def run(stem, solver, *args, **kwargs):
    """The result on the host; None where the solver refuses."""
    args, kwargs = ([on_device(x) for x in args], {name: on_device(x) for name, x in kwargs.items()})
    with numbaprims.config(allow_tf32=stem == "gemm"):
        if numbaprims.explain(stem, *args, **kwargs)[solver].refusal:
            return None
        with numbaprims.config(algorithm={stem.split("_")[0]: solver}):
            return getattr(numbaprims, stem)(*args, **kwargs).to_host()


def on_device(x):
    return to_device(x) if isinstance(x, np.ndarray) else x


def integers(rng, shape, dtype):
    return caller_array(rng.integers(-2, 3, shape).astype(np.float64), dtype)


def lost_first(terms, large=2.0**12):
    """Two factors of a sum that begins with `large`^2; the ones behind it change nothing in float32."""
    x = np.ones(terms, np.float32)
    x[0] = large
    return x


@pytest.mark.parametrize("dtype, at_once", [("f32", 8), ("f64", 1), ("bf16", 16)])
def test_products_are_exact(short, dtype, at_once, rng):
    """Chunks and a rest, a batch, an epilogue; who adds in order leaves what is too long to who does not."""
    taken = set()
    for k, m, n, lead in ((5 * TERMS + 7, 3, 17, ()), (6 * TERMS, 20, 18, (2,)), (4 * TERMS * at_once + 52, 2, 8, ())):
        a, b = integers(rng, (*lead, m, k), dtype), integers(rng, (*lead, n, k), dtype)
        c, bias = integers(rng, (*lead, m, n), dtype), integers(rng, (n,), dtype)
        right, want = b.swapaxes(-1, -2), to_float64(a) @ to_float64(b).swapaxes(-1, -2)
        more = {"c": c, "alpha": 0.5, "beta": 2.0, "bias": bias, "activation": "abs"} if lead else {}
        if more:
            want = np.abs(0.5 * want + 2.0 * to_float64(c) + to_float64(bias))
        for solver in SOLVERS["gemm"]:
            got = run("gemm", solver, a, right, **more)
            if got is not None:
                assert_exact(got, want)
                taken.add((solver, k > TERMS * at_once))
    long = {solver for solver, beyond in taken if beyond}
    assert long == {"naive", "split_k"} | (set() if dtype == "f64" else {"mma_split_k"})
    assert {solver for solver, _ in taken} - long <= {"mma", "wgmma"}


@pytest.mark.parametrize("solver, dtype, at_once", [
    ("naive", "f32", 1), ("split_k", "f32", 1), ("split_k", "bf16", 1), ("mma_split_k", "f16", 16),
    ("mma_split_k", "bf16", 16), ("mma_split_k", "f32", 8),
])  # fmt: skip
def test_what_one_sum_loses(short, solver, dtype, at_once):
    """2^29 and then ones: what was added in order was 2^29, now only the first chunk is.  c takes 2^29 off again, and
    what is left is exact in every type."""
    most = TERMS * at_once
    k = 5 * most
    a, b = (caller_array(lost_first(k, large)[None].astype(np.float64), dtype) for large in (2.0**15, 2.0**14))
    c = caller_array(np.full((1, 1), -(2.0**14)), dtype)
    got = run("gemm", solver, a, b.T, c=c, alpha=2.0**-15, beta=1.0)
    assert float(got[0, 0]) * 2**15 == k - most


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("solver", SOLVERS["gemv"])
def test_matrix_times_vector(short, solver, dtype, rng):
    """Rows, columns and strides: exact, and of 2^24 and ones no more than one accumulator's ones are lost."""
    adders = {"naive": 1, "row_block": 256, "register_block": 256}[solver]
    n = 3 * adders * TERMS + 8
    for m in (1, 2):
        a, x, y = integers(rng, (m, n), dtype), integers(rng, (n,), dtype), caller_array(np.full(m, 3.0), dtype)
        if dtype == "bf16":  # sums that its 8 bits hold
            x[40:] = 0
        for left in (a, np.asfortranarray(a)):
            got = run("gemv", solver, left, x, y=y, alpha=-1.0, beta=2.0)
            assert_exact(got, 2 * to_float64(y) - to_float64(a) @ to_float64(x))
    if dtype == "f32":
        row = lost_first(n)
        for matrix in (row[None], np.stack([row] * 5)):
            for left in (matrix, np.asfortranarray(matrix)):
                assert np.all(run("gemv", solver, left, row) - 2.0**24 >= n - TERMS - 8)


def test_rows_of_any_length_are_cut():
    """Few rows and many; whoever adds a row, each of its lanes gets a bounded number of its terms."""
    for m, n, order in ((2, 3 * 10**8, "row"), (20_000, 3 * 10**8, "row"), (200_000, 3 * 10**8, "column")):
        how = arguments.cut(type("P", (), {"m": m, "n": n, "order": order, "dtype": "f32"}))
        adders = how.lanes * how.warps if how.rows else arguments.THREADS // how.lanes
        assert how.length <= adders * parts.TERMS and (how.chunks - 1) * how.length < n <= how.chunks * how.length


GRADIENTS = (
    ((2, 4, 8, 24), (5, 4, 3, 3), {"padding": 1}),
    ((2, 6, 8, 24), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    ((2, 4, 100, 2), (6, 4, 1, 1), {}),
)


@pytest.mark.parametrize("solver", SOLVERS["conv"])
def test_gradients_of_weights(short, solver, rng):
    """Every solver, where its sums or those of gemm's solver within are cut."""
    for shape, w_shape, more in GRADIENTS:
        dtype = "bf16" if "mma" in solver else "f32"
        x, c = integers(rng, shape, dtype), integers(rng, w_shape, dtype)
        dy = integers(rng, (shape[0], w_shape[0], *shape[2:]), dtype)
        want = numbaprims.conv_backward_weight(*(to_float64(z) for z in (dy, x)), w_shape, **more)
        want = 0.5 * want - 2.0 * to_float64(c)
        got = run("conv_backward_weight", solver, dy, x, w_shape, c=c, alpha=0.5, beta=-2.0, **more)
        if got is not None:
            assert np.abs(to_float64(got) - want).max() <= (4e-3 if dtype == "bf16" else 2e-5) * np.abs(want).max()


@pytest.mark.parametrize(
    "solver", ["naive", "implicit_gemm", "direct_weight", "gemm_1x1", "im2col_gemm_weight", "sums"]
)
@pytest.mark.parametrize("size", [(1, 5000), (5000, 1)])
def test_what_a_gradient_loses(short, solver, size):
    """2^24 and then ones: as many as a sum has in order."""
    dy, x = (lost_first(5000).reshape(1, 1, *size) for _ in range(2))
    if solver == "sums":
        dy[0, 0, 0, 0] = 2.0**24
        got = run("conv_backward_bias", solver, dy)
        assert run("conv_backward_bias", "naive", dy)[0] - 2.0**24 >= 5000 - TERMS - 8
    else:
        got = run("conv_backward_weight", solver, dy, x, (1, 1, 1, 1))
    assert got.ravel()[0] - 2.0**24 >= 5000 - TERMS - 8


def test_what_tensor_cores_lose_of_a_gradient(short):
    """2^29 and then ones, 16 of which are one addition; see `test_what_one_sum_loses`."""
    most = TERMS * 16
    dy, x = (caller_array(lost_first(4 * most, large).reshape(1, 1, 1, -1), "f16") for large in (2.0**15, 2.0**14))
    c = caller_array(np.full((1, 1, 1, 1), -(2.0**14)), "f16")
    got = run("conv_backward_weight", "implicit_mma", dy, x, (1, 1, 1, 1), c=c, alpha=2.0**-15, beta=1.0)
    assert got.item() * 2**15 == 3 * most


def test_many_chunks_are_added_in_parts():
    """Of chunks, too, some are added by themselves."""
    chunks = 3 * ending.FEW
    sums, out = lost_first(chunks, 2.0**24), np.full(1, np.nan, np.float32)
    launch(
        ending.make_reduce("f32", "f32", "switch", "slow", True), 1, ending.REDUCE_THREADS, out, 0, 0, 0, 0, 0, 0, 0, 0,
        1.0, 0.0, 0.0, 0.0, 0.0, sums, chunks, 1, 1, 1, 1, 1, 1, 1, 1, *(0,) * 12,
    )  # fmt: skip
    assert out[0] == 2.0**24 + 2 * ending.FEW
