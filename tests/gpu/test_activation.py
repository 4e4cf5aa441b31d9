"""Activations on a GPU: every kind, both directions, every type and layout, against the definition, in the emulator.

The parameters and the tolerances are those of the tests on the CPU.
"""

import numpy as np
import pytest
from helpers import ACTIVATION_ERRORS, assert_near, from_float64, in_library, nan_filled, to_float64
from ptx_emulator import NO_CHECKS
from ptx_emulator.driver import EmulatedDriver
from test_activation import CASES, DTYPES, FIRST, check_backward, check_forward, moderate, wide_range

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import registry
from numbaprims.gpu import driver
from numbaprims.gpu.activation import formulas, gradients, kernels
from numbaprims.gpu.memory import DeviceArray, to_device
from numbaprims.gpu.reduce.solvers import CHUNK
from numbaprims.ops._activation_problem import SPECIAL
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.reference import activation as reference

SOLVERS = [solver.name for solver in registry.solvers("activation", "cuda")]
SAMPLE = [case for case in FIRST if case[0] in ("hard_tanh", "elu", "gelu", "power")]


@pytest.fixture(autouse=True)
def quiet():
    """Overflows and NaN are what is tested."""
    with np.errstate(all="ignore"):
        yield


def bits(a, dtype):
    """The storage of an array of the host."""
    return a.view(np.uint16) if dtype in ("f16", "bf16") else a


def on_device(storage, dtype):
    return to_device(in_library(storage, dtype))


def forced(solver):
    return numbaprims.config(algorithm={"activation": solver} if solver else {})


def run_both(x, dy, dtype, kind, parameters):
    """(y, dx) as storage, outputs filled with NaN before."""
    given, slope = on_device(x, dtype), on_device(dy, dtype)
    y, dx = on_device(nan_filled(x.shape, dtype), dtype), on_device(nan_filled(x.shape, dtype), dtype)
    assert numbaprims.activation(given, kind, out=y, **parameters) is y
    assert numbaprims.activation_backward(slope, given, y, kind, out=dx, **parameters) is dx
    return bits(y.to_host(), dtype), bits(dx.to_host(), dtype)


def check_both(x, dtype, kind, parameters, rng):
    dy = from_float64(rng.standard_normal(x.shape), dtype)
    values = to_float64(x, dtype)
    y, dx = run_both(x, dy, dtype, kind, parameters)
    check_forward(y, values, dtype, kind, parameters)
    keep = moderate(values, kind)
    if x.ndim == 1 and x.size > 1000 and kind in ("log", "sqrt", "log1p", "reciprocal", "rsqrt", "log2", "log10"):
        keep &= (values > 1e-30) & (values < 1e30)  # where the slope is a normal number
    check_backward(
        dx[keep], to_float64(dy, dtype)[keep], values[keep], to_float64(y, dtype)[keep], dtype, kind, parameters
    )


@pytest.mark.parametrize("worst", [False, True], ids=["exact", "worst"])
def test_whole_range_in_float32(worst, rng):
    """Every kind on all exponents and what is special; special functions exact, and as wrong as they may be."""
    emulated = EmulatedDriver(checks=NO_CHECKS, worst_approximations=worst)
    with driver.use(emulated):
        for case in CASES:
            kind, parameters = case.values
            x = wide_range("f32")
            check_both(x[moderate(to_float64(x, "f32"), kind)], "f32", kind, parameters, rng)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "f32"])
def test_some_kinds_in_every_type(gpu, dtype, rng):
    """Contiguous, a length that no vector divides, every check of the emulator on."""
    for kind, parameters in SAMPLE:
        x = from_float64(3 * rng.standard_normal((5, 7, 11)), dtype)
        check_both(x, dtype, kind, parameters, rng)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "f32"])
def test_whole_range(dtype, rng):
    """All numbers of the half precisions; float64 on all exponents."""
    with driver.use(EmulatedDriver(checks=NO_CHECKS)):
        for case in CASES:
            kind, parameters = case.values
            x = wide_range(dtype) if dtype == "f64" else np.arange(1 << 16).astype(np.uint16)
            if dtype == "f64":
                x = x[moderate(x, kind)]
            check_both(x, dtype, kind, parameters, rng)


@pytest.mark.parametrize("solver", SOLVERS)
def test_cheap_kinds_by_every_solver(gpu, solver, rng):
    """The switch: each kind by its code; every solver that takes the problem."""
    ran = 0
    for kind, parameters in [case for case in FIRST if case[0] in formulas.CHEAP]:
        x = from_float64(3 * rng.standard_normal((3, 5, 64)), "f32")
        given = on_device(x, "f32")
        if numbaprims.explain("activation", given, kind, **parameters)[solver].refusal:
            continue
        with forced(solver):
            check_both(x, "f32", kind, parameters, rng)
        ran += 1
    assert ran == (0 if solver == "channel_sums" else sum(kind in formulas.CHEAP for kind, _ in FIRST))
    forward = {launched.entry for launched in gpu.launches if "backward" not in launched.entry}
    assert len(forward) <= 1, "the cheap kinds have more kernels than one"


@pytest.mark.parametrize("layout", ["transposed", "sliced", "negative", "rows", "deep"])
def test_layouts(gpu, layout, rng):
    """Every way to lie; what is next to the elements stays."""
    for dtype in ("f32", "f16"):
        shape, length = ((4, 6, 2, 6, 4, 12), 4) if layout == "deep" else ((3, 6, 120), 40)
        base = from_float64(rng.standard_normal(shape), dtype)
        source, target = on_device(base, dtype), on_device(nan_filled(base.shape, dtype), dtype)

        def cut(a, layout=layout, length=length):
            if layout == "transposed":
                return a[..., :length].transpose(2, 0, 1)
            if layout == "negative":
                return a[:, ::-1, length - 1 :: -1]
            if layout == "rows":
                return a[:, :, 8 : 8 + length]
            # six loops, none of which continues another
            return a[::2, ::2, ::2, ::2, ::2, ::3] if layout == "deep" else a[:, ::2, ::3]

        x, out = cut(source), cut(target)
        values = to_float64(bits(np.ascontiguousarray(x.to_host()), dtype), dtype)
        for kind in ("relu", "tanh"):
            assert numbaprims.activation(x, kind, out=out) is out
            check_forward(bits(np.ascontiguousarray(out.to_host()), dtype), values, dtype, kind, {})
            new = numbaprims.activation(x, kind)
            check_forward(bits(np.ascontiguousarray(new.to_host()), dtype), values, dtype, kind, {})
        whole = to_float64(bits(target.to_host(), dtype), dtype)
        assert np.isnan(whole).sum() == whole.size - values.size


@pytest.mark.parametrize(("dtype", "solver"), [("f32", None), ("f32", "naive"), ("f16", None)])
def test_prelu(gpu, solver, dtype, rng):
    """One slope, and one a channel: by rows, by channels side by side, through gaps; the weight's gradient too."""
    for shape in ((3, 5, 4, 8), (9, 5), (2, 5, 304), (600, 2, 3)):
        for layout in ("C", "channels_last", "sliced"):
            for size in {1, shape[1]}:
                x, dy = (from_float64(rng.standard_normal(shape), dtype) for _ in range(2))
                weight = from_float64(rng.standard_normal(size), dtype)
                wide = [to_float64(z, dtype) for z in (dy, x, weight)]
                given = [to_device(relaid(in_library(z, dtype), layout)) for z in (dy, x)]
                w = on_device(weight, dtype)
                with forced(solver):
                    y = numbaprims.prelu(given[1], w)
                    dx, dweight = numbaprims.prelu_backward(*given, w)
                y, dx, dweight = (bits(np.ascontiguousarray(z.to_host()), dtype) for z in (y, dx, dweight))
                want_dx, want_dweight = reference.activation_backward(*wide[:2], "prelu", weight=wide[2])
                assert_near(y, reference.activation(wide[1], "prelu", weight=wide[2]), dtype, 1)
                assert_near(dx, want_dx, dtype, 1)
                assert_near(dweight, want_dweight, dtype, 4, np.abs(wide[0] * wide[1]).sum())


def relaid(a, layout):
    if layout == "channels_last":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)
    return np.repeat(a, 2, axis=-1)[..., ::2] if layout == "sliced" else a


def test_gradients_of_many_loops_and_long_rows(gpu, rng):
    """Seven loops, none of which continues another; rows that are cut."""
    deep = rng.standard_normal((2, 4, 6, 4, 2, 6, 4)).astype(np.float32)
    cut = (slice(None, None, 2),) * 7
    given, values = to_device(deep)[cut], deep[cut]
    dx, dweight = numbaprims.prelu_backward(given, given, to_device(np.zeros(2, np.float32)))
    want_dx, want = reference.activation_backward(values, values, "prelu", weight=np.zeros(2))
    assert_near(dx.to_host(), want_dx, "f32", 1)
    assert_near(dweight.to_host(), want, "f32", 4, np.abs(values * values).sum())
    long = rng.standard_normal((1, 40, 7000)).astype(np.float32)[:, :3]
    for x in (long, np.moveaxis(np.ascontiguousarray(np.moveaxis(long, 1, -1)), -1, 1)):
        dweight = numbaprims.prelu_backward(to_device(x), to_device(x), to_device(np.ones(3, np.float32)))[1]
        want = reference.activation_backward(x, x, "prelu", weight=np.zeros(3))[1]
        assert_near(dweight.to_host(), want, "f32", 4, np.square(x, dtype=np.float64).sum())
    assert sum("reduce_part" in launched.entry for launched in gpu.launches) == 2


def test_weight_gradient_of_many_chunks_keeps_its_bits(gpu, rng):
    """More than a chunk of each channel; alignment changes neither the order of the sums nor a bit."""
    each = 2 * CHUNK + 1000
    x, dy = (rng.standard_normal((1, 2, each)).astype(np.float32) for _ in range(2))
    want = reference.activation_backward(dy, x, "prelu", weight=np.zeros(2))[1]
    found = set()
    for offset in (0, 1):
        given = []
        for z in (dy, x):
            flat = np.zeros(z.size + 1, np.float32)
            flat[offset : offset + z.size] = z.ravel()
            whole = to_device(flat)[offset : offset + z.size]
            given.append(DeviceArray(whole.memory, whole.pointer, z.shape, z.strides, whole.dtype, whole.driver))
        dweight = numbaprims.prelu_backward(*given, to_device(np.ones(2, np.float32)))[1].to_host()
        assert_near(dweight, want, "f32", 4, np.abs(x * dy).sum((0, 2)))
        found.add(dweight.tobytes())
    assert len(found) == 1
    names = {launched.entry for launched in gpu.launches if "reduce_part" in launched.entry}
    assert len(names) == 2, "by packs, and by single elements"


@pytest.mark.parametrize(("dtype", "solver"), [("f32", None), ("f32", "naive"), ("f16", None)])
def test_glu(gpu, solver, dtype, rng):
    errors = ACTIVATION_ERRORS["glu"]
    for shape, axis in (((6, 10, 4), 1), ((8, 3), 0), ((2000,), 0), ((5, 64), 1), ((3, 1400), -1), ((2, 0), 0)):
        x = from_float64(rng.standard_normal(shape), dtype)
        half = tuple(n // 2 if i == axis % len(shape) else n for i, n in enumerate(shape))
        dy = from_float64(rng.standard_normal(half), dtype)
        given, slope = on_device(x, dtype), on_device(dy, dtype)
        y, dx = on_device(nan_filled(half, dtype), dtype), on_device(nan_filled(shape, dtype), dtype)
        with forced(solver):
            assert numbaprims.glu(given, axis, out=y) is y
            assert numbaprims.glu_backward(slope, given, axis, out=dx) is dx
            values, dy_values = to_float64(x, dtype), to_float64(dy, dtype)
            found = bits(dx.to_host(), dtype)
            assert_near(bits(y.to_host(), dtype), reference.activation(values, "glu", axis=axis), dtype, errors.forward)
            want = reference.activation_backward(dy_values, values, "glu", axis=axis)
            scale = np.abs(np.concatenate([dy_values, dy_values], axis))
            assert_near(found, want, dtype, errors.backward, scale)
            # in place: each half is read before it is written
            assert numbaprims.glu_backward(slope, given, axis, out=given) is given
        np.testing.assert_array_equal(bits(given.to_host(), dtype), found)


def test_in_place_and_misaligned(gpu, rng):
    """An array that begins between multiples of 16 bytes takes the kernel of single elements, with the same bits."""
    x = rng.standard_normal(1037).astype(np.float32)
    expected = numbaprims.silu(to_device(x)).to_host()
    flat = to_device(np.concatenate([np.zeros(1, np.float32), x]))
    view = flat[1:]
    assert numbaprims.silu(view, out=view) is view
    np.testing.assert_array_equal(view.to_host(), expected)
    assert flat.to_host()[0] == 0
    assert [launched.entry.split("_")[-4] for launched in gpu.launches] == ["4", "1"]


def test_choice(gpu):
    """Vectors for what is contiguous, rows for runs, never the naive one for either."""
    x = to_device(np.ones((64, 96), np.float32))
    assert numbaprims.explain("gelu", x).chosen.solver == "vector"
    assert numbaprims.explain("gelu", x[:, 32:]).chosen.solver == "rows"
    assert numbaprims.explain("glu", x).chosen.solver == "rows"
    assert "contiguous" in numbaprims.explain("gelu", x.T[::2])["vector"].refusal
    weight = to_device(np.ones(96, np.float32))
    assert numbaprims.explain("prelu", x, weight).chosen.solver == "rows"


def test_nan_as_the_hardware_writes_it(gpu):
    """All bits of the mantissa: an exponent that is added to them must not make a number of it."""
    nan, one = np.full(64, 0x7FFFFFFF, np.uint32).view(np.float32), np.ones(64, np.float32)
    for kind in ("elu", "selu", "celu", "softplus", "silu", "mish", "gelu", "hard_swish"):
        dx = numbaprims.activation_backward(to_device(one), to_device(nan), None, kind).to_host()
        assert np.isnan(dx).all(), kind
    assert np.isnan(numbaprims.glu(to_device(np.concatenate([one, nan])), 0).to_host()).all()


def test_negative_zero_stays(gpu):
    zero = np.full(64, -0.0, np.float32)
    for kind in ("elu", "selu", "celu", "softsign", "gelu", "silu", "mish", "tanh"):
        y = numbaprims.activation(to_device(zero), kind).to_host()
        assert (y == 0).all() and np.signbit(y).all(), kind


def test_every_kind_has_code():
    everything = set(KINDS) - {"glu"} | set(SPECIAL)
    assert set(formulas.FORWARD) == set(gradients.BACKWARD) == everything
    assert set(formulas.CHEAP) <= everything and set(gradients.CHEAP) <= everything
    assert set(kernels.FORMULAS) >= {f"{kind}{way}" for kind in everything for way in ("", "_backward")}
    assert arrays.DTYPES.keys() >= set(DTYPES)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("kind", ["tanh", "gelu"])
def test_every_number_of_16_bits(gpu, kind, dtype):
    """The formulas by special functions: less than 0.6 units in the last place off, and limits."""
    every = np.arange(1 << 16, dtype=np.uint16)
    x = to_float64(every, dtype)
    found = to_float64(bits(numbaprims.activation(on_device(every, dtype), kind).to_host(), dtype), dtype)
    with numbaprims.config(device="reference"):
        want = numbaprims.activation(x, kind)
    digits, least = {"f16": (10, -24), "bf16": (7, -126)}[dtype]  # what is subnormal in float32 may be 0
    unit = np.ldexp(1.0, np.maximum(np.frexp(want)[1] - 1 - digits, least))
    good = np.isfinite(x) & (np.abs(x) > 2.0**-125)
    assert np.max(np.abs(found - want)[good] / unit[good]) < 0.6
    assert (np.isnan(found) == np.isnan(x)).all()
    infinite = np.isinf(x)
    np.testing.assert_array_equal(found[infinite], [np.inf, 0.0] if kind == "gelu" else [1.0, -1.0])
