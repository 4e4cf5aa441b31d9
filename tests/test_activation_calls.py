"""Activations as functions: layouts, out, overlap, errors, determinism, what is chosen, what a call costs in memory."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from helpers import (
    ACTIVATION_ERRORS,
    OUT_LAYOUTS,
    SEEDS,
    assert_near,
    float_dtypes,
    from_float64,
    has_module,
    in_domain,
    in_library,
    input_layouts,
    lay_out,
    nan_filled,
    out_layouts,
    shapes,
    solver_names,
    to_float64,
)
from hypothesis import event, given, strategies as st

import numbaprims
from numbaprims import arrays
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.reference import activation as reference

SOLVERS = solver_names("activation")
# One kind for each form of kernel; tests of one type cover the formulas of all.
KIND = st.sampled_from(["relu", "sigmoid", "gelu", "round"])
needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")


def storage_of(array):
    return arrays.enter(array, "array")[0]


def surroundings(view):
    """The elements of a view's memory that are not its own, as bits."""
    base = view if view.base is None else view.base
    mark = np.zeros(base.shape, bool)
    inside = np.lib.stride_tricks.as_strided(
        mark.reshape(-1)[
            (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // view.itemsize :
        ],
        view.shape,
        [s // view.itemsize for s in view.strides],
    )
    inside[...] = True
    return base[~mark].view(f"u{view.itemsize}")


@given(
    solver=st.sampled_from(["default", *SOLVERS]), dtype=float_dtypes(), kind=KIND, shape=shapes(1, 4, 40, 0),
    layout=input_layouts(), other=input_layouts(), out_layout=st.none() | out_layouts(), seed=SEEDS,
)  # fmt: skip
def test_any_layout(solver, dtype, kind, shape, layout, other, out_layout, seed):
    """Both directions, arrays of different layouts, nothing written outside the result."""
    if dtype == "bf16" and not has_module("ml_dtypes"):
        dtype = "f16"
    rng = np.random.default_rng(seed)
    x_storage = lay_out(from_float64(3 * rng.standard_normal(shape), dtype), layout)
    dy_storage = lay_out(from_float64(rng.standard_normal(shape), dtype), other)
    x, dy = in_library(x_storage, dtype), in_library(dy_storage, dtype)
    saved_storage = x_storage
    y_values = reference.activation(to_float64(x_storage, dtype), kind)
    if KINDS[kind].reads == "y":
        saved_storage = lay_out(from_float64(y_values, dtype), layout if layout != "broadcast" else "C")
    saved = in_library(saved_storage, dtype)
    given_y, given_x = (saved, None) if KINDS[kind].reads == "y" else (None, saved)
    if 0 not in shape and solver != "default":
        refused = numbaprims.explain("activation", x, kind)[solver].refusal
        refused = refused or numbaprims.explain("activation_backward", dy, given_x, given_y, kind)[solver].refusal
        if out_layout is not None:
            probe = in_library(nan_filled(shape, dtype, out_layout), dtype)
            refused = refused or numbaprims.explain("activation", x, kind, out=probe)[solver].refusal
            refused = (
                refused
                or numbaprims.explain("activation_backward", dy, given_x, given_y, kind, out=probe)[solver].refusal
            )
        if refused:
            event(f"{solver} refuses")
            return
    event(f"{solver} runs")
    results = []
    with numbaprims.config(algorithm={"activation": solver} if solver != "default" else {}):
        for run in (
            lambda out: numbaprims.activation(x, kind, out=out),
            lambda out: numbaprims.activation_backward(dy, given_x, given_y, kind, out=out),
        ):
            out_storage = None if out_layout is None else nan_filled(shape, dtype, out_layout)
            before = None if out_storage is None else surroundings(out_storage)
            out = None if out_storage is None else in_library(out_storage, dtype)
            result = run(out)
            assert out is None or result is out
            if before is not None:
                np.testing.assert_array_equal(surroundings(out_storage), before)
            results.append(storage_of(result))
    errors = ACTIVATION_ERRORS[kind]
    x_values, dy_values = to_float64(x_storage, dtype), to_float64(dy_storage, dtype)
    assert_near(results[0], y_values, dtype, errors.forward, np.abs(x_values) if kind == "gelu" else 0.0)
    if kind == "sigmoid":
        y = to_float64(saved_storage, dtype)
        want = dy_values * y * (1 - y)
    else:
        want = reference.activation_backward(dy_values, x_values, kind)
    assert_near(results[1], want, dtype, errors.backward, np.abs(dy_values))


@given(
    dtype=float_dtypes(),
    shape=shapes(2, 4, 20, 1),
    layouts=st.tuples(*[input_layouts()] * 2),
    out_layout=out_layouts(),
    seed=SEEDS,
)
def test_prelu_of_any_layout(dtype, shape, layouts, out_layout, seed):
    if dtype == "bf16" and not has_module("ml_dtypes"):
        dtype = "f16"
    rng = np.random.default_rng(seed)
    x, dy = (lay_out(from_float64(rng.standard_normal(shape), dtype), layout) for layout in layouts)
    w = from_float64(rng.standard_normal(shape[1]), dtype)
    out = nan_filled(shape, dtype, out_layout)
    values = [to_float64(s, dtype) for s in (dy, x, w)]
    _, dweight = numbaprims.prelu_backward(*(in_library(s, dtype) for s in (dy, x, w)), out=in_library(out, dtype))
    want_dx, want_dweight = reference.activation_backward(*values[:2], "prelu", weight=values[2])
    assert_near(out, want_dx, dtype, 1)
    assert_near(storage_of(dweight), want_dweight, dtype, 4, np.abs(values[0] * values[1]).sum())


def test_solvers_give_the_same_bits(rng):
    """Of contiguous arrays, of rows with gaps between them, and of elements with gaps."""
    x = (3 * rng.standard_normal((50, 100))).astype(np.float32)
    inputs = x, np.pad(x, ((0, 0), (0, 4)))[:, :100], np.repeat(x, 2, 1)[:, ::2]
    solvers = [name for name in SOLVERS if name != "channel_sums"]
    for kind in ("gelu", "softplus", "power"):
        results = {}
        for solver in solvers:
            for y in inputs:
                if not numbaprims.explain("activation", y, kind)[solver].refusal:
                    with numbaprims.config(algorithm={"activation": solver}):
                        results.setdefault(solver, []).append(numbaprims.activation(y, kind).view(np.uint32))
        assert list(results) == solvers
        for found in results.values():
            for result in found:
                np.testing.assert_array_equal(result, results["naive"][0])


# ---------------------------------------------------------------- out


@pytest.mark.parametrize("layout", OUT_LAYOUTS)
def test_in_place(layout, rng):
    values = rng.standard_normal((6, 50))
    want = numbaprims.tanh(values)
    for _ in range(2):  # the second call takes the fast path
        x = lay_out(values, layout)
        assert numbaprims.tanh(x, out=x) is x
        np.testing.assert_array_equal(x, want)
        same = x[:]  # another object over the same elements
        assert numbaprims.abs(x, out=same) is same
        np.testing.assert_array_equal(x, np.abs(want))
    dy = rng.standard_normal((6, 50))
    dx = numbaprims.tanh_backward(dy, want)
    for target in ("dy", "y"):
        arrays_ = {"dy": dy.copy(), "y": want.copy()}
        numbaprims.tanh_backward(arrays_["dy"], arrays_["y"], out=arrays_[target])
        np.testing.assert_array_equal(arrays_[target], dx)


def test_overlap_is_refused_before_anything_is_written(rng):
    memory = rng.standard_normal(101)
    for _ in range(2):
        before = memory.copy()
        with pytest.raises(ValueError, match="out shares memory with x; only out=x itself is allowed"):
            numbaprims.relu(memory[:-1], out=memory[1:])
        with pytest.raises(ValueError, match="out shares memory with x"):
            numbaprims.relu(memory, out=memory[::-1])
        with pytest.raises(ValueError, match="out shares memory with dy"):
            numbaprims.relu_backward(memory[:50], rng.standard_normal(50), out=memory[1:51])
        with pytest.raises(ValueError, match="out shares memory with y"):
            numbaprims.relu_backward(rng.standard_normal(50), memory[:50], out=memory[1:51])
        square = memory[:100].reshape(10, 10)
        with pytest.raises(ValueError, match="out shares memory with weight"):
            numbaprims.prelu(rng.standard_normal((10, 10)), square[3], out=square)
        np.testing.assert_array_equal(memory, before)
        # the same call shapes without overlap, so that the fast path knows them
        numbaprims.relu(memory[:-1], out=np.empty(100))
        numbaprims.relu_backward(memory[:50], rng.standard_normal(50), out=np.empty(50))
    interleaved = numbaprims.relu(memory[:100:2], out=memory[1:101:2])
    np.testing.assert_array_equal(interleaved, np.maximum(memory[:100:2], 0))


@pytest.mark.parametrize(
    ("kind", "bound"), [("clip", "min"), ("clip", "max"), ("hard_tanh", "min_val"), ("hard_tanh", "max_val"),
                        ("clipped_relu", "alpha")],
)  # fmt: skip
def test_bounds_are_numbers(kind, bound):
    x = np.linspace(-4, 4, 64)
    for _ in range(4):  # known calls too
        getattr(numbaprims, kind)(x, **{bound: 1.0})
    for call in (getattr(numbaprims, kind), lambda x, **words: numbaprims.activation(x, kind, **words)):
        with pytest.raises(ValueError, match=f"{bound} of {kind} is nan"):
            call(x, **{bound: np.nan})


def test_fast_path_checks_what_the_key_does_not_hold(rng):
    x, out = rng.standard_normal((2, 64))
    numbaprims.relu(x, out=out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        numbaprims.relu(x, out=out)
    raw = np.zeros(8 * 64 + 1, np.uint8)
    unaligned = raw[1:].view(np.float64)
    assert not unaligned.flags.aligned
    unaligned[...] = x
    np.testing.assert_array_equal(numbaprims.relu(unaligned), np.maximum(x, 0))
    with pytest.raises(ValueError, match="not aligned"):
        numbaprims.relu(x, out=unaligned)
    with numbaprims.config(device="reference"):
        np.testing.assert_allclose(numbaprims.relu(x), np.maximum(x, 0))


def test_new_results_lie_as_the_input_does(rng):
    x = np.asfortranarray(rng.standard_normal((5, 6)))
    for _ in range(2):
        assert numbaprims.exp(x).flags.f_contiguous
        assert numbaprims.exp_backward(x, x).flags.f_contiguous
        assert numbaprims.exp(x[::2, ::2]).strides == np.exp(x[::2, ::2]).strides
        assert numbaprims.exp(np.broadcast_to(x, (2, 5, 6))).flags.writeable


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
def test_empty_and_single(shape):
    for dtype in (np.float32, np.float64, np.float16):
        x = np.full(shape, 2.0, dtype)
        y = numbaprims.square(x)
        assert y.shape == shape and y.dtype == dtype and (y == 4).all()
        dx = numbaprims.square_backward(x, x)
        assert dx.shape == shape and (dx == 8).all()
    if len(shape) > 1 and shape[1] == 0:
        dx, dweight = numbaprims.prelu_backward(np.ones(shape), np.ones(shape), np.ones(1))
        assert dx.shape == shape and dweight == [0.0]


# ---------------------------------------------------------------- errors

X = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: numbaprims.activation(X, "relux"), ValueError, "kind is 'relux'; it must be one of identity, relu"),
        (lambda: numbaprims.activation(X, ["relu"]), ValueError, r"kind is \['relu'\]; it must be one of identity"),
        (lambda: numbaprims.activation_backward(X, X, X, ["relu"]), ValueError, r"kind is \['relu'\]; it must be"),
        (lambda: numbaprims.activation(X, "elu", beta=1.0), TypeError, "elu got 'beta'; it takes alpha"),
        (lambda: numbaprims.activation(X, "threshold"), TypeError, "threshold needs threshold"),
        (lambda: numbaprims.threshold(X, None, 1.0), TypeError, "threshold of threshold is None"),
        (lambda: numbaprims.elu(X, "a"), TypeError, "alpha of elu is 'a'; it must be a number"),
        (lambda: numbaprims.elu(X, "3"), TypeError, "alpha of elu is '3'; it must be a number"),
        (lambda: numbaprims.celu(X, 0.0), ValueError, "alpha is 0"),
        (lambda: numbaprims.softplus(X, beta=0), ValueError, "beta is 0"),
        (lambda: numbaprims.hard_tanh(X, 2.0, 1.0), ValueError, "min_val must not be the larger"),
        (lambda: numbaprims.gelu(X, "erf"), ValueError, "approximate is 'erf'"),
        (lambda: numbaprims.relu([1.0]), TypeError, "x is a list"),
        (lambda: numbaprims.relu(X.astype(np.int32)), TypeError, "activations take float64, float32"),
        (lambda: numbaprims.relu(X, out=np.empty((4, 5), np.float32)), ValueError, r"out is a .* has shape \(4, 6\)"),
        (lambda: numbaprims.relu(X, out=np.empty((4, 6))), TypeError, "the result is float32"),
        (lambda: numbaprims.relu(X, out=3), TypeError, "out is a int"),
        (lambda: numbaprims.relu_backward(X, X[1:]), ValueError, "they must have one shape"),
        (lambda: numbaprims.relu_backward(X, X.astype(np.float64)), TypeError, "one dtype"),
        (lambda: numbaprims.activation_backward(X, X, None, "tanh"), TypeError, "y is None"),
        (lambda: numbaprims.activation_backward(X, None, X, "gelu"), TypeError, "x is None"),
        (lambda: numbaprims.activation_backward(X, None, X, "glu"), TypeError, "x is None"),
        (lambda: numbaprims.glu(X, 2), ValueError, "axis is 2"),
        (lambda: numbaprims.glu(X[:3], 0), ValueError, "its length must be even"),
        (lambda: numbaprims.glu(X, 1.5), TypeError, "axis of glu is 1.5; it must be an int"),
        (lambda: numbaprims.glu_backward(X, X), ValueError, r"dy must have shape \(4, 3\)"),
        (lambda: numbaprims.prelu(X, np.ones(5, np.float32)), ValueError, r"it must be \(1,\) .*, or \(6,\)"),
        (lambda: numbaprims.prelu(X, np.ones(6)), TypeError, "weight"),
        (lambda: numbaprims.prelu(X, None), TypeError, "weight"),
    ],
)
def test_errors_name_the_argument(call, error, words):
    with pytest.raises(error, match=words):
        call()


# ---------------------------------------------------------------- the same bits

DIGESTS = """
import hashlib, sys
import numpy as np, numbaprims
rng = np.random.default_rng(5)
x = rng.standard_normal((6, 37, 4000)).astype(np.float32)
dy = rng.standard_normal(x.shape).astype(np.float32)
w = rng.standard_normal(37).astype(np.float32)
last = lambda a: np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
for threads in map(int, sys.argv[1].split(",")):
    results = []
    with numbaprims.config(threads=threads):
        results += [numbaprims.gelu(x), numbaprims.gelu_backward(dy, x), numbaprims.mish(x[:, ::2, ::-1])]
        results += [numbaprims.glu(x, 0), numbaprims.tanh(x.T, out=np.empty(x.T.shape, np.float32)[::-1])]
        results += numbaprims.prelu_backward(dy, x, w)
        results += numbaprims.prelu_backward(dy, x, w[:1])
        results += numbaprims.prelu_backward(last(dy), last(x), w)
        results += numbaprims.prelu_backward(dy[..., ::3], x[..., ::3], w)
        with numbaprims.config(algorithm="activation:stream"):
            results.append(numbaprims.softplus(x))
        for _ in range(2):
            results.append(numbaprims.prelu_backward(dy, x, w)[1])
    print(hashlib.sha256(b"".join(np.ascontiguousarray(r).tobytes() for r in results)).hexdigest())
"""


@pytest.mark.cpu
def test_bits_do_not_depend_on_the_number_of_threads():
    environment = dict(os.environ, NUMBA_NUM_THREADS="8")
    environment.pop("OMP_NUM_THREADS", None)
    run = subprocess.run(
        [sys.executable, "-c", DIGESTS, "1,2,3,8,1"], env=environment, capture_output=True, text=True, check=True
    )
    digests = run.stdout.split()
    assert len(digests) == 5 and len(set(digests)) == 1


# ---------------------------------------------------------------- choice, explanation, memory


def test_naive_is_never_chosen(device):
    for n in (1, 1000, 1 << 16, 1 << 22):
        x = np.broadcast_to(np.float32(1), n)
        inputs = [np.empty(n, np.float32), np.empty((4, n + 8), np.float32)[:, : n + 4]]
        if device == "cpu":  # on a GPU naive is the way to walk elements with gaps
            inputs += [x, np.empty((n, 2), np.float32)[:, 0]]
        for array in inputs:
            for kind in ("relu", "exp", "power"):
                assert numbaprims.explain("activation", array, kind).chosen.solver != "naive"
                assert numbaprims.explain("activation_backward", array, array, array, kind).chosen.solver != "naive"
    large = "stream" if device == "cpu" else "vector"
    assert numbaprims.explain("relu", np.empty(1 << 26, np.float32)).chosen.solver == large
    assert numbaprims.explain("relu", np.empty(1 << 20, np.float32)).chosen.solver == "vector"


def test_every_name_poses_its_problem():
    x = np.ones((2, 4), np.float32)
    for name, defaults in ((name, kind.parameters) for name, kind in KINDS.items()):
        extra = {"weight": np.ones(1, np.float32)} if "weight" in defaults else {}
        extra |= {"threshold": 0.0, "value": 1.0} if name == "threshold" else {}
        problem = numbaprims.explain(name, x, **extra).problem
        assert f"--kind {name} " in problem.bench_command() + " "
        saved = {KINDS[name].reads: x} if KINDS[name].reads else {}
        dy = x[:, :2] if name == "glu" else x
        backward = numbaprims.explain(f"{name}_backward", dy, **saved, **extra).problem
        assert backward.direction == "backward" and backward.bench_command().endswith("--backward")
        assert problem.flops() > 0 and backward.bytes_moved() > problem.bytes_moved() - 1


@pytest.mark.cpu
def test_strided_calls_allocate_nothing():
    x = np.ones((512, 1024), np.float32)[:, ::2]
    out = np.empty((512, 512), np.float32).T
    numbaprims.gelu(x, out=out)
    numbaprims.glu(x, 0, out=out[:256])
    tracemalloc.start()
    numbaprims.gelu(x, out=out)
    numbaprims.glu(x, 0, out=out[:256])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


def test_verbose_names_the_command(capfd):
    with numbaprims.config(verbose=1):
        for _ in range(2):
            numbaprims.relu(np.ones(7))
    lines = [line for line in capfd.readouterr().err.splitlines() if "bench activation" in line]
    assert len(lines) == 2 and "--kind relu --shapes 7 --dtype f64" in lines[0]


# ---------------------------------------------------------------- torch, other devices


@needs_torch
def test_torch_tensors(rng):
    import torch

    values = rng.standard_normal((3, 4, 5))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = torch.tensor(values).to(dtype)
        out = torch.empty_like(x)
        for _ in range(2):
            y = numbaprims.gelu(x, out=out)
            assert y is out
            torch.testing.assert_close(y, torch.nn.functional.gelu(x))
        result = numbaprims.tanh(x.transpose(0, 2))
        assert result.dtype == dtype and result.stride() == torch.tanh(x.transpose(0, 2)).stride()
        dx, dweight = numbaprims.prelu_backward(x, x, torch.ones(4, dtype=dtype))
        assert dx.dtype == dweight.dtype == dtype and dweight.shape == (4,)
    with pytest.raises(TypeError, match="requires grad"):
        numbaprims.relu(torch.ones(3, requires_grad=True))
    with pytest.raises(TypeError):
        numbaprims.relu(torch.ones(3), out=np.empty(3, np.float32))


def test_reference_device(rng):
    x, dy = rng.standard_normal((2, 4, 6)).astype(np.float32)
    w = np.full(6, 0.25, np.float32)
    for kind in KINDS:
        extra = {"weight": w} if kind == "prelu" else {"threshold": 0.1, "value": 2.0} if kind == "threshold" else {}
        a = in_domain(x, kind)
        y = numbaprims.activation(a, kind, **extra)
        g = dy[:, :3] if kind == "glu" else dy
        dx = numbaprims.activation_backward(g, a, y, kind, **extra)
        with numbaprims.config(device="reference"):
            np.testing.assert_allclose(numbaprims.activation(a, kind, **extra), y, rtol=1e-5, atol=1e-6)
            again = numbaprims.activation_backward(g, a, y, kind, **extra)
        for one, other in zip(*((v if isinstance(v, tuple) else (v,)) for v in (dx, again)), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
