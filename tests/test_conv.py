"""Convolutions in every direction: every solver that the registry lists, against the definition."""

import itertools

import numpy as np
import pytest
from conv_cases import (
    CASES,
    DIRECTIONS,
    FUNCTIONS,
    LARGE,
    Case,
    amplification,
    arguments,
    cases,
    from_layout,
    is_exact,
    large,
    operand_layouts,
    refused,
    to_layout,
)
from helpers import (
    FLOATS,
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
    solver_names,
    to_float64,
)
from hypothesis import event, given, strategies as st

import numbaprims
from numbaprims.reference import conv as reference

SOLVERS = solver_names("conv")
DTYPES = FLOATS if has_module("ml_dtypes") else ("f64", "f32", "f16")
LAYOUTS = ("NCHW", "NHWC")


@pytest.fixture(autouse=True, scope="module")
def pieces_allowed():
    """Under which every solver may be asked."""
    with numbaprims.config(accuracy="fast"):
        yield


def forced(solver):
    return numbaprims.config(algorithm={"conv": solver})


def call(solver, direction, first, second, *args, **kwargs):
    with forced(solver):
        return getattr(numbaprims, FUNCTIONS[direction])(first, second, *args, **kwargs)


def takers(direction, dtypes=DTYPES):
    """The solvers that take any of the cases in a direction."""
    calls = []
    for case, dtype in itertools.product(CASES, dtypes):
        zeros = (in_library(from_float64(np.zeros(shape), dtype), dtype) for shape in case.operand_shapes(direction))
        more, window = arguments(case, direction)
        calls.append(((*zeros, *more), window))
    with numbaprims.config(accuracy="fast"):
        return [
            solver for solver in SOLVERS if any(not refused(solver, direction, *args, **words) for args, words in calls)
        ]


SOME = {"f32": slice(None), "f64": slice(0, None, 2), "f16": slice(0, None, 4), "bf16": slice(2, None, 4)}
PAIRS = [(solver, direction) for direction in DIRECTIONS for solver in takers(direction)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver, direction", PAIRS)
def test_exact(solver, direction, dtype):
    """Small integers, all geometries (in float32: each compiles), out full of NaN: bits, or a transform's bound."""
    rng, ran = np.random.default_rng(1), 0
    for at, case in enumerate(CASES[SOME[dtype]]):
        shapes, sums = case.operand_shapes(direction), case.sums(direction)
        first, second = (exact_integers(shape, dtype, sums, rng) for shape in shapes)
        expected = case.expected(direction, first, second)
        largest = float(np.abs(first).max() * np.abs(second).max())
        for layout in LAYOUTS if dtype == "f32" else (LAYOUTS[at % 2],):
            more, window = arguments(case, direction, layout)
            layouts = operand_layouts(direction, layout)
            a, b = (
                in_library(from_float64(to_layout(x, of), dtype), dtype)
                for x, of in zip((first, second), layouts, strict=True)
            )
            result = "NCHW" if direction == "weight" else layout
            storage = nan_filled(to_layout(expected, result).shape, dtype)
            out = in_library(storage, dtype)
            if refused(solver, direction, a, b, *more, out=out, **window):
                continue
            ran += 1
            assert call(solver, direction, a, b, *more, out=out, **window) is out
            got = from_layout(storage, result)
            try:
                if is_exact(solver):
                    assert_exact(got, expected, dtype, vacuous=not expected.any())
                else:
                    assert_close(
                        got, expected, k=amplification(solver) * sums, dtype=dtype, max_abs=largest * np.sqrt(sums),
                        vacuous=True,
                    )  # fmt: skip
            except AssertionError as error:
                raise AssertionError(f"{case}, {layout}: {error}") from None
    if not ran:
        pytest.skip(f"{solver} takes no {dtype}")


@pytest.mark.parametrize("solver, direction", PAIRS)
@given(data=st.data(), seed=SEEDS)
def test_fuzz(solver, direction, data, seed):
    """Geometries, layouts in memory, types, scalars and c, with out full of NaN: within both bounds."""
    rng = np.random.default_rng(seed)
    draw = data.draw
    case, dtype, layout = draw(cases()), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))
    alpha, beta = draw(st.sampled_from([1.0, -0.5, 2.0])), draw(st.sampled_from([0.0, 1.0, 0.25]))
    operands = [
        lay_out(to_layout(real_values(shape, dtype, rng), of), draw(input_layouts()))
        for shape, of in zip(case.operand_shapes(direction), operand_layouts(direction, layout), strict=True)
    ]
    layouts = operand_layouts(direction, layout)
    values = [from_layout(to_float64(x, dtype), of) for x, of in zip(operands, layouts, strict=True)]
    expected = case.expected(direction, *values)
    result = "NCHW" if direction == "weight" else layout
    shape = to_layout(expected, result).shape
    c = lay_out(real_values(shape, dtype, rng), draw(input_layouts()))
    bias = real_values((case.w[0],), dtype, rng) if direction == "forward" and draw(st.booleans()) else None
    expected = reference.finish(
        expected, alpha=alpha, beta=beta, c=from_layout(to_float64(c, dtype), result),
        bias=None if bias is None else to_float64(bias, dtype),
    )  # fmt: skip
    out = nan_filled(shape, dtype, draw(out_layouts()))
    sums = case.sums(direction)
    largest = np.abs(values[0]).max() * np.abs(values[1]).max() * abs(alpha) * np.sqrt(sums) + 4
    more, window = arguments(case, direction, layout)
    a, b = (in_library(x, dtype) for x in operands)
    ending = {"alpha": alpha, "beta": beta, "c": in_library(c, dtype), "out": in_library(out, dtype)}
    if bias is not None:
        ending["bias"] = in_library(bias, dtype)
    if refused(solver, direction, a, b, *more, **window, **ending):
        event("refused")
        return
    call(solver, direction, a, b, *more, **window, **ending)
    got = from_layout(out, result)
    bound = max(largest, np.abs(expected).max())
    k = amplification(solver) * (sums + 4)
    assert_close(got, expected, k=k, dtype=dtype, max_abs=bound, vacuous=True)
    assert np.isfinite(to_float64(got, dtype)).all()


@pytest.mark.cpu
@pytest.mark.parametrize("solver, direction", PAIRS)
def test_many_blocks(solver, direction):
    """Shapes of real layers: more than one block in every dimension, and edges that no tile fits."""
    if solver == "naive":
        pytest.skip("too slow for large problems, and has no blocks")
    for case, first, second, expected in large(direction):
        for layout in LAYOUTS:
            more, window = arguments(case, direction, layout)
            layouts = operand_layouts(direction, layout)
            a, b = to_layout(first, layouts[0]), to_layout(second, layouts[1])
            if refused(solver, direction, a, b, *more, **window):
                continue
            got = call(solver, direction, a, b, *more, **window)
            got = from_layout(got, "NCHW" if direction == "weight" else layout)
            sums = case.sums(direction)
            assert_close(got, expected, k=amplification(solver) * sums, max_abs=max(3 * np.sqrt(sums), expected.max()))


@pytest.mark.parametrize("solver", takers("forward", ["f32"]))
def test_plan_equals_the_call(solver):
    """A plan computes with the same kernels: the same bits as the plain call by the same solver."""
    rng = np.random.default_rng(3)
    ran = 0
    for case in CASES:
        x, w = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.w))
        bias = rng.standard_normal(case.w[0]).astype(np.float32)
        for layout in LAYOUTS:
            a = to_layout(x, layout)
            if refused(solver, "forward", a, w, bias, activation="relu", layout=layout, **case.window):
                continue
            ran += 1
            plan = numbaprims.conv.plan(
                a.shape, w, bias=bias, activation="relu", layout=layout, algorithm=solver, **case.window
            )
            plain = numbaprims.conv(a, w, bias, activation="relu", layout=layout, algorithm=solver, **case.window)
            out = np.full_like(plain, np.nan)
            assert plan(a, out=out) is out
            np.testing.assert_array_equal(out, plain, err_msg=f"{case} {layout}")
            expected = np.maximum(reference.finish(case.expected("forward", x, w), bias=bias), 0)
            sums = case.sums("forward")
            got = from_layout(plain, layout)
            assert_close(
                got, expected, k=amplification(solver) * (sums + 2), max_abs=4 * np.sqrt(sums) + 4, vacuous=True
            )
    assert ran


@pytest.mark.parametrize("kind", ["tanh", ("leaky_relu", {"negative_slope": 0.1}), "gelu"])
@pytest.mark.parametrize("solver", [solver for solver, direction in PAIRS if direction == "forward"])
def test_activations(solver, kind):
    rng = np.random.default_rng(4)
    for case in CASES[3:5]:
        x, w = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.w))
        bias = rng.standard_normal(case.w[0]).astype(np.float32)
        if refused(solver, "forward", x, w, bias, activation=kind, **case.window):
            continue
        got = numbaprims.conv(x, w, bias, activation=kind, algorithm=solver, **case.window)
        sums = reference.finish(case.expected("forward", x.astype(np.float64), w), bias=bias, activation=kind)
        assert_close(got, sums, k=amplification(solver) * (case.sums("forward") + 8), max_abs=40.0)


@pytest.mark.cpu
def test_transposed_convolution_and_its_gradients():
    """conv_transpose is the adjoint of conv: <conv(x), y> = <x, conv_transpose(y)>; sizes as torch's formula says."""
    rng = np.random.default_rng(5)
    for rank, stride, padding, more, dilation, groups in (
        (2, 2, 1, 1, 1, 1), (2, 1, 0, 0, 1, 2), (1, 3, 2, 2, 1, 1), (3, 2, 1, 0, 2, 1),
        (2, (2, 1), ((0, 1), (1, 0)), 0, 1, 1),
    ):  # fmt: skip
        x = rng.standard_normal((2, 4, *(5, 6, 4)[:rank]))
        w = rng.standard_normal((4, 3, *(3, 4, 2)[:rank]))
        bias = rng.standard_normal(3 * groups)
        window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        out = numbaprims.conv_transpose(x, w, bias, output_padding=more, **window)
        assert out.shape[:2] == (2, 3 * groups)
        plain = out - bias.reshape(-1, *(1,) * rank)
        z = rng.standard_normal(out.shape)
        forward = numbaprims.conv(z, w, **window)
        np.testing.assert_allclose((forward * x).sum(), (z * plain).sum(), rtol=1e-10)
        np.testing.assert_array_equal(numbaprims.conv_transpose_backward_data(z, w, **window), forward)
        dw = numbaprims.conv_transpose_backward_weight(z, x, w.shape, **window)
        step = 1e-6 * rng.standard_normal(w.shape)
        after = numbaprims.conv_transpose(x, w + step, output_padding=more, **window)
        np.testing.assert_allclose((dw * step).sum(), ((after - plain) * z).sum(), rtol=1e-5, atol=1e-9)


@pytest.mark.cpu
def test_gradients_by_finite_differences():
    """The gradients are those of the forward function, in float64."""
    rng = np.random.default_rng(6)
    for case in (CASES[5], CASES[13], CASES[14], CASES[17], CASES[24]):
        x, w, bias = (rng.standard_normal(s) for s in (case.x, case.w, case.w[:1]))
        dy = rng.standard_normal(case.y())
        dx = numbaprims.conv_backward_data(dy, w, case.x, **case.window)
        dw = numbaprims.conv_backward_weight(dy, x, case.w, **case.window)
        db = numbaprims.conv_backward_bias(dy)
        for gradient, value, place in ((dx, x, 0), (dw, w, 1), (db, bias, 2)):
            step = 1e-6 * rng.standard_normal(value.shape)
            ends = []
            for sign in (1, -1):
                moved = [x, w, bias]
                moved[place] = value + sign * step
                ends.append((numbaprims.conv(*moved, **case.window) * dy).sum())
            np.testing.assert_allclose((gradient * step).sum(), (ends[0] - ends[1]) / 2, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bias_gradient(layout):
    rng = np.random.default_rng(7)
    solvers = [
        name for name in SOLVERS if not numbaprims.explain("conv_backward_bias", np.ones((1, 1, 1)))[name].refusal
    ]
    assert len(solvers) >= 1
    for shape in ((1, 1, 1, 1), (3, 5, 7, 9), (2, 33, 17), (2, 6, 3, 4, 5), (4, 70, 12, 12)):
        for dtype in DTYPES:
            dy = exact_integers(shape, dtype, int(np.prod(shape)), rng)
            given_dy = in_library(from_float64(to_layout(dy, layout), dtype), dtype)
            for solver in solvers:
                storage = nan_filled(shape[1:2], dtype)
                with forced(solver):
                    numbaprims.conv_backward_bias(given_dy, layout=layout, out=in_library(storage, dtype))
                assert_exact(storage, reference.conv_backward_bias(dy), dtype, vacuous=True)


def test_int8():
    """int8 x int8 and uint8 x int8 give exact int32 sums, over the whole range."""
    rng = np.random.default_rng(8)
    for solver, direction in PAIRS + [(name, "forward") for name in SOLVERS if (name, "forward") not in PAIRS]:
        if direction != "forward":
            continue
        for kind, name in ((np.int8, "i8"), (np.uint8, "u8")):
            for case in CASES:
                x = exact_integers(case.x, name, case.sums("forward"), rng)
                w = exact_integers(case.w, "i8", case.sums("forward"), rng)
                x[0, 0] = np.iinfo(kind).min
                w[0] = -128
                bias = rng.integers(-1000, 1000, case.w[0]).astype(np.int32)
                expected = case.expected("forward", x.astype(np.int64), w.astype(np.int64))
                expected = np.maximum(expected + bias.reshape(-1, *(1,) * case.rank), 0)
                for layout in LAYOUTS:
                    a = to_layout(x, layout)
                    if refused(solver, "forward", a, w, bias, activation="relu", layout=layout, **case.window):
                        continue
                    got = numbaprims.conv(a, w, bias, activation="relu", layout=layout, algorithm=solver, **case.window)
                    assert got.dtype == np.int32
                    np.testing.assert_array_equal(from_layout(got, layout), expected, err_msg=f"{solver} {case}")


def test_channels_last_in_channels_last_out():
    """A tensor with its channels behind gives such a result, without a word about layouts."""
    rng = np.random.default_rng(9)
    x, w = rng.standard_normal((2, 6, 9, 8)).astype(np.float32), rng.standard_normal((4, 6, 3, 3)).astype(np.float32)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    got = numbaprims.conv(last, w)
    assert got.transpose(0, 2, 3, 1).flags.c_contiguous
    assert_close(got, Case(x.shape, w.shape).expected("forward", x.astype(np.float64), w), k=54, max_abs=30.0)


def test_nan_and_infinity_go_through():
    """Every solver that adds up products keeps them where they belong."""
    rng = np.random.default_rng(10)
    for solver in [solver for solver, direction in PAIRS if direction == "forward" and is_exact(solver)]:
        for case in (CASES[3], CASES[4], CASES[16]):
            x, w = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.w))
            x[0, 1, 2, 3], x[0, 0, 0, 0] = np.nan, np.inf
            if refused(solver, "forward", x, w, **case.window):
                continue
            got = numbaprims.conv(x, w, algorithm=solver, **case.window)
            with np.errstate(invalid="ignore"):
                clean = case.expected("forward", np.isfinite(x).astype(np.float64) - 1, np.ones(case.w))
            np.testing.assert_array_equal(np.isfinite(got), clean == 0, err_msg=f"{solver} {case}")


def test_bias_gradients_of_known_arrays_read_what_they_are_given():
    """The second call of one kind of array skips the checks, not the arrays; other kinds are other calls."""
    rng = np.random.default_rng(9)
    for shape, layout in (((2, 4, 6, 6), "NCHW"), ((2, 4, 6, 6), "NHWC"), ((2, 4, 6), "NCW")):
        for dtype in (np.float32, np.float64):
            for _ in range(3):
                dy = rng.integers(-9, 9, shape).astype(dtype)
                axes = tuple(axis for axis in range(dy.ndim) if axis != layout.index("C"))
                got = numbaprims.conv_backward_bias(dy, layout=layout)
                assert got.dtype == dtype
                np.testing.assert_array_equal(got, dy.sum(axes))
    with pytest.raises(ValueError, match="layout"):
        numbaprims.conv_backward_bias(dy, layout="CHW")


def test_empty_batch_and_no_channels_reached():
    x, w = np.empty((0, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    assert numbaprims.conv(x, w).shape == (0, 4, 6, 6)
    dw = numbaprims.conv_backward_weight(np.empty((0, 4, 6, 6), np.float32), x, w.shape)
    np.testing.assert_array_equal(dw, np.zeros(w.shape))
    np.testing.assert_array_equal(numbaprims.conv_backward_bias(np.empty((0, 4, 6, 6), np.float32)), np.zeros(4))


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"stride": 0}, ValueError, "stride is 0"),
        ({"stride": (1, 2, 3)}, ValueError, "stride is"),
        ({"stride": 1.5}, TypeError, "stride is 1.5"),
        ({"padding": -1}, ValueError, "padding"),
        ({"padding": 2**31}, ValueError, "padding is .*2147483647 is the most"),
        ({"padding": "full"}, ValueError, "'same' or 'valid'"),
        ({"padding": ((1, 2),)}, ValueError, "pairs"),
        ({"dilation": 5}, ValueError, "does not fit"),
        ({"groups": 3}, ValueError, "groups is 3"),
        ({"layout": "CHWN"}, ValueError, "layout is 'CHWN'"),
        ({"layout": "NCW"}, ValueError, "layout is 'NCW'"),
        ({"bias": np.ones(3, np.float32)}, ValueError, "bias"),
        ({"bias": np.ones(4)}, TypeError, "bias"),
        ({"beta": 1.0}, ValueError, "c is not given"),
        ({"out": np.ones((1, 4, 6, 7), np.float32)}, ValueError, "out"),
        ({"out": np.ones((1, 4, 6, 6))}, TypeError, "out"),
        ({"algorithm": "magic"}, ValueError, "no solver 'magic'"),
        ({"activation": "glu"}, ValueError, "cannot be fused"),
        ({"out_dtype": "i8"}, TypeError, "out_dtype"),
    ],
)
def test_bad_arguments(change, error, words):
    x, w = np.ones((1, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)
    with pytest.raises(error, match=words):
        numbaprims.conv(x, w, **change)


def test_bad_shapes_and_types():
    x, w = np.ones((1, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)
    for bad_x, bad_w, error, words in (
        (x[0], w, ValueError, "dimensions"),
        (x, w[0], ValueError, "dimensions"),
        (x, w[:, :3], ValueError, "C / groups"),
        (x.astype(np.float64), w, TypeError, "one dtype"),
        (x.astype(np.int32), w.astype(np.int32), TypeError, "float64"),
        (x[..., :2], w, ValueError, "does not fit"),
    ):
        with pytest.raises(error, match=words):
            numbaprims.conv(bad_x, bad_w)
    dy = np.ones((1, 4, 6, 6), np.float32)
    with pytest.raises(ValueError, match="gives"):
        numbaprims.conv_backward_data(dy, w, (1, 4, 9, 9))
    with pytest.raises(ValueError, match="gives"):
        numbaprims.conv_backward_weight(dy, x, (4, 4, 2, 3))
    with pytest.raises(ValueError, match="output_padding"):
        numbaprims.conv_transpose(x, w, output_padding=1)
    with pytest.raises(ValueError, match="shares memory"):
        numbaprims.conv(x, w, padding=1, out=x)
    with pytest.raises(ValueError, match="this plan takes"):
        numbaprims.conv.plan((1, 4, 8, 8), w)(x[..., :7])


@pytest.mark.parametrize("solver, direction", PAIRS)
def test_accumulating_into_c_itself(solver, direction):
    rng = np.random.default_rng(11)
    for case in (CASES[3], CASES[16], Case((1, 16, 3, 16), (1, 16, 1, 6), stride=(2, 1), padding=((4, 2), (0, 1)))):
        given = (*case.operand_shapes(direction), case.result_shape(direction))
        a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in given)
        (more, window), expected = arguments(case, direction), c + case.expected(direction, a, b)
        if not refused(solver, direction, a, b, *more, beta=1.0, c=c, out=c, **window):
            call(solver, direction, a, b, *more, beta=1.0, c=c, out=c, **window)
            np.testing.assert_allclose(c, expected, atol=1e-2)


@pytest.mark.cpu
def test_index_arithmetic_past_2_31():
    """Elements farther apart than 2**31, by strides over a small memory: indices must be 64 bits wide."""
    rng = np.random.default_rng(12)
    flat = rng.standard_normal(4096).astype(np.float32)
    # n steps by nothing: 2**20 images of 2**12 elements and more are one memory
    x = np.lib.stride_tricks.as_strided(flat, (2**20, 3, 5, 5), (0, 100, 20, 4))
    w = rng.standard_normal((2, 3, 5, 5)).astype(np.float32)
    got = numbaprims.conv(x, w)
    assert got.shape == (2**20, 2, 1, 1)
    assert (got == got[0]).all()
    assert_close(got[0, :, 0, 0], (w.astype(np.float64) * x[0]).sum(axis=(1, 2, 3)), k=80, max_abs=30.0)


BITS = """
import hashlib, numpy as np, numbaprims
from numbaprims import explain
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for x, w, more in %r:
    a, b = rng.standard_normal(x).astype("f4"), rng.standard_normal(w).astype("f4")
    dy = rng.standard_normal(numbaprims.conv(a, b, **more).shape).astype("f4")
    for name, args in (("conv", (a, b)), ("conv_backward_data", (dy, b, x)), ("conv_backward_weight", (dy, a, w))):
        for row in explain(name, *args, **more):
            if row.refusal is None and row.solver != "naive":
                digest.update(getattr(numbaprims, name)(*args, algorithm=row.solver, **more).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.cpu
def test_same_bits_for_every_thread_count():
    shapes = [(case.x, case.w, case.window) for case in LARGE]
    assert len(printed_with_threads(BITS % shapes)) == 1


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_torch():
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    for shape in ((2, 6, 11), (2, 6, 11, 9), (1, 6, 5, 6, 7)):
        rank = len(shape) - 2
        x = torch.randn(shape, dtype=torch.float64)
        w = torch.randn((4, 3, *(3,) * rank), dtype=torch.float64)
        b = torch.randn(4, dtype=torch.float64)
        window = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
        y = numbaprims.conv(x, w, b, **window)
        assert isinstance(y, torch.Tensor)
        torch.testing.assert_close(y, getattr(functional, f"conv{rank}d")(x, w, b, **window))
        dy = torch.randn_like(y)
        back = torch.ops.aten.convolution_backward(
            dy, x, w, [4], [2] * rank, [1] * rank, [1] * rank, False, [0] * rank, 2, [True, True, True]
        )
        torch.testing.assert_close(numbaprims.conv_backward_data(dy, w, shape, **window), back[0])
        torch.testing.assert_close(numbaprims.conv_backward_weight(dy, x, tuple(w.shape), **window), back[1])
        torch.testing.assert_close(numbaprims.conv_backward_bias(dy), back[2])
        up = torch.randn((6, 2, *(3,) * rank), dtype=torch.float64)
        torch.testing.assert_close(
            numbaprims.conv_transpose(x, up, stride=2, padding=1, output_padding=1, groups=2),
            getattr(functional, f"conv_transpose{rank}d")(x, up, None, 2, 1, 1, 2),
        )
    last = torch.randn(2, 8, 10, 12).to(memory_format=torch.channels_last)
    w = torch.randn(5, 8, 3, 3)
    y = numbaprims.conv(last, w, padding=1)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, functional.conv2d(last, w, padding=1), rtol=1e-4, atol=1e-4)
    with pytest.raises(TypeError, match="requires grad"):
        numbaprims.conv(last.requires_grad_(), w)
