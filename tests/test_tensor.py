"""binary, where, scale, fill, cast: NumPy's values in every type, layout and broadcast, saturation, refusals."""

import contextlib
import dataclasses

import numpy as np
import pytest
from helpers import NUMPY_FLOATS, caller_array, forced, from_float64, to_float64
from tensor_cases import near_ties

import numbaprims
from numbaprims.cpu import launch, target
from numbaprims.cpu.rates import PROFILES
from numbaprims.cpu.reduce import bands, solvers, turn
from numbaprims.dispatch import examples, registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.dtypes import LONG_NAMES
from numbaprims.formulas.maps import BINARY, BITWISE
from numbaprims.ops import tensor
from numbaprims.tuning import records

NAMES = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "min": "minimum",
    "max": "maximum",
    "pow": "power",
    "floor_div": "floor_divide",
    "atan2": "arctan2",
}
#: Broadcasts by the shapes of both.
SHAPES = [
    ((7, 67), (7, 67)), ((7, 67), (67,)), ((7, 67), (7, 1)), ((1, 67), (7, 1)), ((3, 5, 37), (5, 1)),
    ((3, 5, 37), (3, 1, 37)), ((700,), ()), ((50, 3), (3,)), ((1,), (1,)), ((), ()), ((4, 1, 300), (1, 3, 1)),
    ((2, 0, 3), (3,)),
]  # fmt: skip
TYPES = ["int8", "uint8", "int32", "int64", "bool", "float16", "float32", "float64"]


def layouts(x):
    """The array, and others of the same elements."""
    yield x
    yield np.asfortranarray(x)
    yield x[::-1]
    wide = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)
    wide[..., ::3] = x
    yield wide[..., ::3]


@pytest.mark.parametrize("op", BINARY)
def test_values_of_numpy(rng, op):
    a, b = rng.standard_normal((9, 40)), rng.standard_normal((9, 40))
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.5]
    a[:8, :8], b[:8, :8] = np.array(special)[:, None], special
    if op == "pow":
        a[8] = abs(a[8])
    with np.errstate(all="ignore"):
        want = getattr(np, NAMES.get(op, op))(a, b)
        have = numbaprims.binary(a, b, op)
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, 1e-13, 1e-13)
        with numbaprims.config(device="reference"):
            np.testing.assert_array_equal(numbaprims.binary(a, b, op), want)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("op", ["add", "less"])
def test_broadcasts(rng, op, shapes):
    a, b = (np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes)
    want = getattr(np, op)(a, b)
    for x, y in ((a, b), (b, a)):
        np.testing.assert_array_equal(numbaprims.binary(x, y, op), getattr(np, op)(x, y))
    full = np.broadcast_to(a, want.shape)
    np.testing.assert_array_equal(numbaprims.binary(full, b, op), want)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_layouts(rng, dtype):
    a, b = (rng.integers(-50, 50, (5, 33, 20)).astype(dtype) for _ in range(2))
    c = b[0].T.copy().T
    for x in layouts(a):
        for y in (*layouts(b), c):
            for op in ("sub", "less"):
                want = getattr(np, NAMES.get(op, op))(x, y)
                np.testing.assert_array_equal(numbaprims.binary(x, y, op), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integers_saturate(rng, dtype):
    limits = np.iinfo(dtype)
    a, b = rng.integers(limits.min, limits.max, (2, 300), dtype, endpoint=True)
    wide = a.astype(np.float64), b.astype(np.float64)
    for op in ("add", "sub", "mul"):
        want = np.clip(getattr(np, NAMES.get(op, op))(*wide), limits.min, limits.max).astype(dtype)
        for device in ("cpu", "reference"):
            with numbaprims.config(device=device):
                np.testing.assert_array_equal(numbaprims.binary(a, b, op), want)


def test_factors(rng):
    a, b, c = rng.standard_normal((3, 6, 50), np.float32)
    for op in ("add", "sub", "mul", "min", "max"):
        function = getattr(np, NAMES.get(op, op))
        want = function(0.5 * a, -2.0 * b) + 3.0 * c
        have = numbaprims.binary(a, b, op, alpha1=0.5, alpha2=-2.0, c=c, beta=3.0, out=c.copy())
        np.testing.assert_allclose(have, want, 1e-5, 1e-5)
        np.testing.assert_allclose(numbaprims.binary(a, b[0], op, alpha1=2.0), function(2 * a, b[0]), 1e-5, 1e-5)
    into = c.copy()
    assert numbaprims.binary(a, b, "add", c=into, out=into) is into
    np.testing.assert_allclose(into, a + b + c, 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_factors_of_a_quotient(rng, dtype):
    a, b, c = rng.standard_normal((3, 6, 50)).astype(dtype)
    wide = np.promote_types(dtype, np.float32).type
    want = np.floor_divide(a.astype(wide) * wide(1.7), b.astype(wide) * wide(-0.7))
    np.testing.assert_array_equal(numbaprims.binary(a, b, "floor_div", alpha1=1.7, alpha2=-0.7), want.astype(dtype))
    have = numbaprims.binary(a, b, "floor_div", c=c, beta=0.5)
    np.testing.assert_allclose(have, np.floor_divide(a.astype(wide), b) + wide(0.5) * c, 1e-3, 1e-3)


@pytest.mark.parametrize("dtype", TYPES)
def test_where_keeps_bits(rng, dtype):
    a, b = (rng.integers(0, 2**62 if dtype != "float16" else 2**15, (6, 35)).astype(dtype) for _ in range(2))
    condition = rng.random((6, 35)) < 0.5
    for x in layouts(a):
        for where in (condition, condition[0], condition[:, :1], np.asfortranarray(condition)):
            have = numbaprims.where(where, x, b)
            assert have.dtype == a.dtype
            np.testing.assert_array_equal(have, np.where(where, x, b))


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_cast(rng, source, dtype):
    x = rng.standard_normal((5, 70)) * 500
    # to bytes by way of integers: what NumPy makes of a negative float differs by machine
    x = (x if source.startswith("float") else x.astype(np.int64)).astype(source)
    if source.startswith("float"):
        x[0, :6] = [np.nan, np.inf, -np.inf, 0.0, -0.5, 127.9]
    for given in layouts(x):
        have = numbaprims.cast(given, dtype)
        if dtype.startswith("float") or dtype == source:
            want = given.astype(dtype)
        elif dtype == "bool":
            want = given != 0
        else:
            limits = np.iinfo(dtype)
            whole = np.trunc(np.nan_to_num(given.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300))
            big = whole >= limits.max
            want = np.where(big, limits.max, np.where(big, 0, np.maximum(whole, limits.min)).astype(dtype))
        assert have.dtype == dtype
        np.testing.assert_array_equal(have, want)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", NUMPY_FLOATS[2:])
@pytest.mark.parametrize("width", (16, 32, 64))
def test_cast_rounds_once(dtype, width, as_cpu):
    machine = target.current()
    if width > machine.vector_bytes:
        pytest.skip(f"this CPU has vectors of {machine.vector_bytes} bytes")
    as_cpu(dataclasses.replace(machine, vector_bytes=width))
    x = near_ties(dtype)
    whole = (x[abs(x) < 2**30].astype(np.int64)[:, None] + [-1, 0, 1]).ravel()
    for each in (x, x[::-1], whole, whole.astype(np.int32)):
        have = numbaprims.cast(each, LONG_NAMES[dtype], out=caller_array(np.zeros(each.shape), dtype))
        np.testing.assert_array_equal(to_float64(have), to_float64(from_float64(each, dtype), dtype))


def test_cast_of_the_largest_integers():
    x = np.array([2**63 - 1, -(2**63), 2**53 + 1])
    np.testing.assert_array_equal(numbaprims.cast(x, "int64"), x)
    np.testing.assert_array_equal(numbaprims.cast(x, "int32"), [2**31 - 1, -(2**31), 2**31 - 1])


@pytest.mark.parametrize("dtype", TYPES)
def test_fill_and_scale(rng, dtype):
    for x in layouts(np.zeros((5, 40), dtype)):
        if x.flags.writeable:
            assert numbaprims.fill(x, 1) is x and (x == 1).all()
    for value in (300.7, -300.7, np.nan):
        with numbaprims.config(device="reference"):
            want = numbaprims.fill(np.zeros(3, dtype), value)
        np.testing.assert_array_equal(numbaprims.fill(np.zeros(3, dtype), value), want)
    if dtype.startswith("float"):
        assert np.signbit(numbaprims.fill(np.ones(70, dtype), -0.0)).all()
        y = rng.standard_normal((5, 40)).astype(dtype)
        for x in layouts(y):
            np.testing.assert_array_equal(numbaprims.scale(x, 0.5), x * y.dtype.type(0.5))
        np.testing.assert_array_equal(numbaprims.scale(y, 3.0, out=y), y)


@pytest.mark.parametrize("dtype", TYPES)
def test_transform_and_concat(rng, dtype):
    x = rng.integers(0, 2**15, (3, 37, 20)).astype(dtype)
    for given in layouts(x):
        for axes in ((0, 2, 1), (2, 0, 1), (1, 0, 2), (2, 1, 0)):
            have = numbaprims.transform(given, axes)
            assert have.flags.c_contiguous
            np.testing.assert_array_equal(have, given.transpose(axes))
        for axis in (0, 1, -1):
            parts = np.split(given, [1, 1, 2], axis)
            np.testing.assert_array_equal(numbaprims.concat(parts, axis), given)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", (5, 16, 1003))
def test_concat_of_rows_side_by_side(rng, dtype, rows):
    """Parts take turns over the same rows; what lies around the result is left alone."""
    for widths in ((3, 3), (1, 70, 2), (33, 33, 40, 5)):
        parts = [rng.integers(0, 2**15, (rows, n)).astype(dtype) for n in widths]
        for gap in (0, 3):
            whole = np.full((rows, sum(widths) + gap), 7, dtype)
            out = whole[:, : sum(widths)]
            for threads in (1, 2):
                whole[...] = 7
                with numbaprims.config(threads=threads):
                    assert numbaprims.concat(parts, 1, out=out) is out
                np.testing.assert_array_equal(out, np.concatenate(parts, 1))
                assert (whole[:, sum(widths) :] == whole.dtype.type(7)).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "m, n",
    [(64, 100), (100, 64), (16, 17), (17, 16), (49, 530), (12, 30), (3, 1000), (1000, 3), (2, 77), (77, 2)]
    # lines of the result, or of x, that share sets of a cache: blocks of few columns, or of few rows
    + [(512, 49), (49, 512), (2048, 21), (21, 2048), (70, 512)],
)
def test_turned_wherever_lines_begin(rng, m, n, dtype):
    """Blocks that begin with a line of the result take the end of a row and the beginning of the next."""
    for start in (0, 1, 4, 7):
        whole = np.full(2 * m * n + 64, 7, dtype)
        y = whole[3 * start : 3 * start + 2 * m * n].reshape(2, n, m)
        x = np.empty(2 * m * n + 64, dtype)[start : start + 2 * m * n].reshape(2, m, n)
        x[...] = rng.integers(0, 200, x.shape)
        numbaprims.transform(x, (0, 2, 1), out=y)
        np.testing.assert_array_equal(y, x.transpose(0, 2, 1))
        assert (whole[: 3 * start] == 7).all() and (whole[3 * start + 2 * m * n :] == 7).all()
    apart = np.full((2, n, m + 5), 7, dtype)
    numbaprims.transform(x, (0, 2, 1), out=apart[..., 2:-3])
    np.testing.assert_array_equal(apart[..., 2:-3], x.transpose(0, 2, 1))
    assert (apart[..., :2] == 7).all() and (apart[..., -3:] == 7).all()


@pytest.fixture
def guarded(monkeypatch):
    """Scratch memory behind which nothing may be written."""
    guard, real = 4096, launch.workspace.borrow

    @contextlib.contextmanager
    def borrow(size):
        with real(size + guard) as memory:
            memory[size:] = 0xA5
            yield memory
            assert (memory[size : size + guard] == 0xA5).all()

    monkeypatch.setattr(launch.workspace, "borrow", borrow)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "m, n", [(64, 100), (192, 130), (128, 512), (512, 512), (196, 512), (600, 100), (64, 2080), (1024, 212)]
)
@pytest.mark.parametrize("leaves", (turn.SECOND, turn.FIRST, turn.FEW))
def test_turned_past_the_caches(rng, m, n, dtype, leaves, monkeypatch, guarded):
    """Whole lines that leave past the caches, rows of a power of two, which a small cache copies first, columns of one,
    which leave by several lines, wherever x begins; nothing behind the scratch memory is written."""
    for module in (turn, solvers):
        monkeypatch.setattr(module, "leaving", lambda target: leaves)
    whole = np.full(2 * m * n + 128, 7, dtype)
    at = -whole.ctypes.data % 64 // whole.itemsize
    y = whole[at : at + 2 * m * n].reshape(2, n, m)
    problem = problem_of("transform", y.transpose(0, 2, 1).copy(), (0, 2, 1), out=y)
    words, where = records.dump(records.fields_of(problem)), registry.target("cpu")
    solver = next(each for each in registry.solvers("tensor", "cpu") if each.name == "turn")
    configs = list(solver.configs(problem, where))
    assert (len(configs) > 1) == (m * y.itemsize % 64 == 0 or leaves == turn.FEW)
    for start in (0, 3):
        x = np.empty(2 * m * n + 8, dtype)[start : start + 2 * m * n].reshape(2, m, n)
        x[...] = rng.integers(0, 200, x.shape)
        for config in configs:
            y[...] = 7
            with numbaprims.settings.trial(examples._choose.Trial("tensor", words, solver, config)):
                numbaprims.transform(x, (0, 2, 1), out=y)
            np.testing.assert_array_equal(y, x.transpose(0, 2, 1), str(config))
    assert (whole[:at] == 7).all() and (whole[at + 2 * m * n :] == 7).all()


def test_refusals():
    a = np.ones((3, 4), np.float32)
    for call, error, match in (
        (lambda: numbaprims.binary(a, a, "plus"), ValueError, "op is 'plus'; it must be one of add, sub"),
        (lambda: numbaprims.binary(a, a[:2], "add"), ValueError, r"a is .*\(3, 4\); b is .*\(2, 4\): their shapes"),
        (lambda: numbaprims.binary(a, a.astype(np.float64), "add"), TypeError, "b a float64"),
        (lambda: numbaprims.binary(a.astype(np.int64), a.astype(np.int64), "add"), TypeError, "int64.*add takes"),
        (lambda: numbaprims.binary(a, a, "less", c=a), ValueError, "alpha1, alpha2, beta and c"),
        (lambda: numbaprims.binary(a, a, "add", alpha1="x"), TypeError, "alpha1 is 'x'"),
        (lambda: numbaprims.where(a, a, a.astype(np.float64)), TypeError, "b a float64"),
        (lambda: numbaprims.cast(a, "complex64"), TypeError, "dtype is 'complex64'"),
        (lambda: numbaprims.binary(a, a[0], "add", out=a[:, ::-1]), ValueError, "out"),
        (lambda: numbaprims.transform(a, (0, 0)), ValueError, r"axes is \(0, 0\) and x is"),
        (lambda: numbaprims.transform(a, 1), TypeError, "axes is 1"),
        (lambda: numbaprims.concat([]), ValueError, "parts is empty"),
        (lambda: numbaprims.concat([None, a]), TypeError, r"parts\[0\] is a NoneType"),
        (lambda: numbaprims.concat(None), TypeError, "parts is None; it must be a sequence of arrays"),
        (lambda: numbaprims.binary(a, None, "add"), TypeError, "b is a NoneType"),
        (lambda: numbaprims.concat([a, a[:, :2]]), ValueError, r"parts\[1\] a .*differ along axis 0 only"),
        (lambda: numbaprims.fill(np.broadcast_to(a[0], (2, 4)), 1.0), ValueError, "read-only"),
    ):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 has no arrays of so many dimensions")
def test_more_dimensions_than_broadcast_are_refused():
    deep = np.ones((1,) * 40, np.float32)
    for call in (lambda: numbaprims.binary(deep, deep, "add"), lambda: numbaprims.where(deep > 0, deep, deep)):
        with pytest.raises(ValueError, match="at most 32 dimensions broadcast"):
            call()


@pytest.mark.cpu
def test_how_operands_lie():
    x, row, column = np.ones((60, 50), np.float32), np.ones(50, np.float32), np.ones((60, 1), np.float32)
    pose = tensor.PROBLEMS["binary"]
    assert pose(x, row, "add").formula == "map:add:row,along"
    assert pose(x, column, "add").formula == "map:add:row,one"
    assert pose(row, column, "add").formula == "map:add:along,one"
    assert pose(x, x, "add").kept == (1,)
    assert pose(x, x.T.copy().T, "add").layout == "strided"
    assert not numbaprims.explain("binary", x, x.T.copy().T, "add")["bands"].refusal
    assert numbaprims.explain("binary", x, x[:, ::-1], "add")["bands"].refusal
    assert numbaprims.explain("binary", x, x[:, ::-1], "add").chosen.solver == "blocks"


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "leaves, l3, columns, rates",
    [(turn.SECOND, 1 << 30, 8192, "znver5"), (turn.SECOND, 1, 128, "znver5")]
    + [(leaves, 1, 8192, "znver5") for leaves in (turn.SECOND, turn.FIRST, turn.FEW)]
    + [(turn.FIRST, 1, 8192, "graniterapids")],
    ids=["near", "parts", "second", "first", "few", "waiting"],
)
def test_turned_operands_are_turned_into_scratch_memory(rng, dtype, leaves, l3, columns, rates, monkeypatch, guarded):
    """Tiles at every edge, wherever the source begins, whose lines share sets of a cache or not, in the caches and past
    them, by whole rows, by parts and by groups that a first-level cache holds; nothing behind the scratch memory is
    written."""
    monkeypatch.setattr(bands, "FAR", (bands.FAR[0], columns))
    for module in (turn, bands):
        monkeypatch.setattr(module, "leaving", lambda target: leaves)
    where = dataclasses.replace(registry.target("cpu"), l3=l3, measured=PROFILES[rates])
    solver = next(each for each in registry.solvers("tensor", "cpu") if each.name == "bands")
    wide = problem_of("binary", np.empty((600, 600), dtype), np.empty((600, 600), dtype).T, "sub")
    assert (solver.tile(wide, where)[1] == 320) == (rates == "graniterapids")
    for m, n in (
        (16, 16),
        (17, 300),
        (300, 17),
        (130, 129),
        (257, 145),
        (512, 256),
        (520, 2048 // np.dtype(dtype).itemsize),
    ):
        for start in (0, 3):
            a = rng.integers(0, 50, (2, m, n)).astype(dtype)
            b = np.empty(2 * m * n + 8, dtype)[start : start + 2 * m * n].reshape(2, n, m)
            b[...] = rng.integers(0, 50, b.shape)
            x = b.transpose(0, 2, 1)
            for left, right in ((a, x), (x, a[:, :, :1]), (x, x), (a[:1, :1], x)):
                out = np.zeros_like(a)
                problem = problem_of("binary", left, right, "sub", out=out)
                assert solver.why_not(problem, where) is None
                want = np.subtract(left, right, dtype=np.int16, casting="unsafe")
                want = np.maximum(want, 0 if dtype == np.uint8 else want)
                for config in solver.configs(problem, where):
                    out[...] = 77
                    solver.bind(problem, where, config)(out, left, right)
                    assert (out == want).all(), f"{m} {n} {start} {config}"


def test_turned_operands_of_several_types_and_threads(rng):
    x, y = rng.standard_normal((2, 700, 530), np.float32)
    mask = rng.random((700, 530)) < 0.5
    out = {}
    for threads in (1, 2):
        with numbaprims.config(threads=threads), forced("tensor", "bands"):
            out[threads] = [
                numbaprims.cast(x.T, "float16", out=np.empty((530, 700), np.float16)),
                numbaprims.scale(x.T, 0.5, out=np.empty((530, 700), np.float32)),
                numbaprims.where(mask.T, x.reshape(530, 700), y.T, out=np.empty((530, 700), np.float32)),
                numbaprims.binary(x.reshape(530, 700), y.T, "less"),
                numbaprims.binary(into := x.reshape(530, 700).copy(), y.T, "mul", alpha1=2.0, out=into),
            ]
    wants = [
        x.T.astype(np.float16), x.T * np.float32(0.5), np.where(mask.T, x.reshape(530, 700), y.T),
        x.reshape(530, 700) < y.T, 2 * x.reshape(530, 700) * y.T,
    ]  # fmt: skip
    for one, two, want in zip(out[1], out[2], wants, strict=True):
        np.testing.assert_array_equal(one, want)
        np.testing.assert_array_equal(two, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fmod_floor_div_and_atan2_of_all_numbers(dtype):
    """Any bits, what is special, and moderate quotients; fmod to the bit."""
    rng = np.random.default_rng(0)
    any_bits = rng.integers(0, 256, (2, 6000 * dtype(0).nbytes), dtype=np.uint8).view(dtype)
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, np.finfo(dtype).smallest_subnormal], dtype)
    near = rng.standard_normal((2, 3000)) * 10.0 ** rng.integers(-2, 5, (2, 3000))
    a, b = np.concatenate(
        [any_bits, np.array(np.meshgrid(special, special)).reshape(2, -1), near.astype(dtype)], axis=1
    )
    with np.errstate(all="ignore"):
        for op, own in (("fmod", np.fmod), ("floor_div", np.floor_divide), ("atan2", np.arctan2)):
            if op == "floor_div":
                few = np.abs(a / b) < 1e6  # beyond, NumPy's is a quotient that it has rounded twice
                a, b = a[few], b[few]
            found = numbaprims.binary(a, b, op)
            want = own(a, b)
            if op == "atan2":
                want = own(a.astype(np.longdouble), b.astype(np.longdouble)).astype(dtype)
            close = np.abs(found - want) <= (np.spacing(np.abs(want)) if op == "atan2" else 0)
            alike = (close | (found == want)) & (np.signbit(found) == np.signbit(want))
            wrong = ~(alike | (np.isnan(found) & np.isnan(want)))
            assert not wrong.any(), (op, a[wrong][:3], b[wrong][:3], found[wrong][:3], want[wrong][:3])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_rest_of_a_large_quotient_is_exact(dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(3000) * 10.0 ** rng.integers(*each, 3000) for each in ((-3, 12), (-2, 3)))
    a, b = a.astype(dtype), b.astype(dtype)
    np.testing.assert_array_equal(numbaprims.binary(a, b, "mod"), np.mod(a, b))
    np.testing.assert_array_equal(numbaprims.binary(b, a, "mod"), np.mod(b, a))  # small dividends of the other sign
    special = np.array([[np.inf, 2], [1, np.inf], [-5, np.inf], [np.nan, 1], [-0.0, 3], [1e38, 1e-38]], dtype).T
    with np.errstate(invalid="ignore"):
        found = numbaprims.binary(special[0].copy(), special[1].copy(), "mod")
        np.testing.assert_array_equal(found[:-1], np.mod(*special)[:-1])
    assert dtype == np.float64 or np.isnan(found[-1])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("op", BITWISE)
def test_bits_are_those_of_numpy(rng, op, dtype, request):
    """The narrowest and the widest type in every shape; in the others the operators share them out."""
    if dtype == "bool" and op.endswith("shift"):
        with pytest.raises(TypeError, match=f"a is a bool array.*; {op} takes int8"):
            numbaprims.binary(*np.ones((2, 3), bool), op)
        return
    size = np.dtype(dtype).itemsize * 8
    every = dtype in ("int8", "int64") or request.config.option.slow
    further = SHAPES if every else SHAPES[BITWISE.index(op) :: len(BITWISE)]
    for shapes in [((7, 64), (7, 64)), *further]:
        a, b = (np.frombuffer(rng.bytes(8 * int(np.prod(shape))), np.int64).reshape(shape) for shape in shapes)
        a, b = (np.asarray((x & 1 if dtype == "bool" else x).astype(dtype)) for x in (a, b))
        counts = [np.asarray(b % (size + 3)).astype(dtype)] if op.endswith("shift") else []
        for y in (b, *counts):
            want = getattr(np, op)(a, y)
            for x in (a, np.asfortranarray(a)):
                have = numbaprims.binary(x, y, op)
                assert have.dtype == a.dtype
                np.testing.assert_array_equal(have, want)
            if have.shape == a.shape:
                np.testing.assert_array_equal(numbaprims.binary(a, y, op, out=a.copy()), want)
    with numbaprims.config(device="reference"):
        np.testing.assert_array_equal(numbaprims.binary(a, y, op), want)
    with pytest.raises(ValueError, match="are for numbers of floats"):
        numbaprims.binary(a, b, op, alpha1=2.0)


def test_bits_of_floats_are_refused():
    with pytest.raises(TypeError, match="a is a float32 array.*; bitwise_and takes int8, uint8, int32, int64, bool"):
        numbaprims.binary(*np.ones((2, 3), np.float32), "bitwise_and")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_nan_or_infinite(dtype):
    x = np.resize(np.array([1, np.nan, np.inf, -np.inf, 0, -np.nan], dtype), (3, 50))
    for given in layouts(x):
        np.testing.assert_array_equal(numbaprims.isnan(given), np.isnan(given))
        for up in (True, False):
            for down in (True, False):
                want = (np.isposinf(given) & up) | (np.isneginf(given) & down)
                have = numbaprims.isinf(given, detect_positive=up, detect_negative=down)
                np.testing.assert_array_equal(have, want)
                assert have.dtype == bool
