"""Pads, elements by indices, rows that are one at an index, parts: against NumPy, types, edges, refusals."""

import numpy as np
import pytest
from helpers import caller_array, forced, printed_with_threads

import numbaprims
from numbaprims.cpu.gather import solvers
from numbaprims.dispatch import registry

TYPES = (np.float64, np.float32, np.float16, np.int64, np.int8, np.bool_)
MODES = ("constant", "reflect", "edge", "wrap")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_pads_are_those_of_numpy(mode, dtype, rng):
    for shape, pads in (
        ((5,), ((20, 13),)), ((3, 4, 5, 6), ((0, 0), (0, 0), (1, 2), (3, 1))), ((1, 1), ((2, 2), (3, 3))),
        ((3, 6, 5, 4), ((0, 0), (2, 1), (1, 7), (0, 0))), ((2, 3, 4), ((1, 2), (0, 0), (0, 0))),
        ((7, 100), ((0, 0), (90, 70))), ((40000,), ((3, 5),)), ((70, 9), ((0, 0), (0, 31))),
    ):  # fmt: skip
        x = (rng.standard_normal(shape) * 9).astype(dtype)
        want = np.pad(x, pads, mode=mode, **({"constant_values": 1} if mode == "constant" else {}))
        for given in (x, x[::-1][::-1].copy("F")):
            np.testing.assert_array_equal(numbaprims.pad(given, pads, mode, 1), want)


def test_pads_past_the_caches(rng, monkeypatch):
    monkeypatch.setattr(solvers, "PAST", 0)
    monkeypatch.setattr(solvers, "LONG", 0)
    for dtype, shape, sides in (
        ("f", (3, 5, 301), 3),
        ("u1", (4, 1000), 17),
        ("d", (2, 9, 5), 2),
        ("f", (2, 70, 160), 1),
    ):
        x = (rng.standard_normal(shape) * 9).astype(dtype)
        pads = ((0, 0), *[(sides, sides + 1)] * (len(shape) - 1))
        for mode in ("edge", "constant"):
            want = np.pad(x, pads, mode=mode)
            for start in (0, 1, 5):
                whole = np.full(want.size + 64, 7, dtype)
                numbaprims.pad(x, pads, mode, out=whole[start : start + want.size].reshape(want.shape))
                np.testing.assert_array_equal(whole[start : start + want.size], want.ravel())
                assert (whole[:start] == 7).all() and (whole[start + want.size :] == 7).all()


def test_pads_below_zero_crop_first(rng):
    x = rng.standard_normal((6, 7, 8), np.float32)
    for mode in MODES:
        want = np.pad(x[1:, :-3, 2:-1], ((0, 2), (4, 0), (0, 0)), mode=mode)
        np.testing.assert_array_equal(numbaprims.pad(x, ((-1, 2), (4, -3), (-2, -1)), mode), want)
    assert numbaprims.pad(x, ((-6, 0), (0, 0), (0, 0))).shape == (0, 7, 8)
    np.testing.assert_array_equal(numbaprims.pad(x[:0], 1, value=2), np.full((2, 9, 10), 2, np.float32))
    np.testing.assert_array_equal(numbaprims.pad(x, 2), np.pad(x, 2))
    np.testing.assert_array_equal(numbaprims.pad(x, (1, 2)), np.pad(x, (1, 2)))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_pads_that_take_all_of_an_axis(mode):
    for shape, pads in (((3,), ((-3, 0),)), ((2, 3), ((1, 1), (-1, -2))), ((2, 3), ((-2, 0), (1, 0)))):
        dy = numbaprims.pad(np.ones(shape, np.float32), pads, mode)
        assert dy.size == 0
        np.testing.assert_array_equal(numbaprims.pad_backward(dy, shape, pads, mode), np.zeros(shape))


def test_what_does_not_pad():
    x = np.ones((2, 3), np.float32)
    for call, error, words in (
        (lambda: numbaprims.pad(x, 1, "mirror"), ValueError, "mode is 'mirror'"),
        (lambda: numbaprims.pad(x, ((1, 1),) * 3), ValueError, "a pair for each axis"),
        (lambda: numbaprims.pad(x, "1"), TypeError, "pads is '1'"),
        (lambda: numbaprims.pad(x, ((0, 0), (-2, -2))), ValueError, "take 4 of the 3 elements along axis 1"),
        (lambda: numbaprims.pad(x[:0], 1, "edge"), ValueError, "no element to repeat"),
        (lambda: numbaprims.pad(np.int8([1]), 1, value=200), ValueError, "integers from -128 to 127"),
        (lambda: numbaprims.pad_backward(x, (2, 3), 1), ValueError, r"has the shape \(4, 5\)"),
        (lambda: numbaprims.pad(np.uint8([1]), 1, value=np.nan), ValueError, "value is nan; .*integers from 0 to 255"),
        (lambda: numbaprims.pad(x, 1, value="3"), TypeError, "value is '3'; it must be a real number"),
        (lambda: numbaprims.pad_backward(x, None, 1), TypeError, "shape is None; it must be a sequence of integers"),
        (lambda: numbaprims.split(x, 2**63, 1), ValueError, "sizes is 9223372036854775808"),
        (lambda: numbaprims.split(x, 2**70, 1), ValueError, "sizes is 1180591620717411303424"),
        (lambda: numbaprims.split(x, (1, 1), 1), ValueError, "add up"),
        (lambda: numbaprims.split(x, 0), ValueError, "sizes is 0"),
        (lambda: numbaprims.split(x, -1), ValueError, "sizes is -1"),
        (lambda: numbaprims.split(x, 2.5), TypeError, "sizes is 2.5"),
        (lambda: numbaprims.split(x, 2, 2), ValueError, "axis is 2"),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_indices_are_those_of_numpy(index, dtype, rng):
    for shape, axis, taken in (
        ((5, 7), 0, (3,)), ((5, 7), 1, (3, 2)), ((4,), 0, ()), ((3, 5, 6, 7), 2, (9,)), ((6, 5), -1, (40,)),
        ((3, 4, 5), 2, (0,)), ((20, 3), 0, (9000,)),
    ):  # fmt: skip
        x = (rng.standard_normal(shape) * 9).astype(dtype)
        indices = np.asarray(rng.integers(-shape[axis], shape[axis], taken)).astype(index)
        want = np.take(x, indices, axis)
        for given in (x, x.copy("F"), np.repeat(x, 2, -1)[..., ::2]):
            np.testing.assert_array_equal(numbaprims.gather(given, indices, axis), want)


@pytest.mark.parametrize("solver", ["gather", "naive"])
def test_an_index_out_of_range_is_named_and_nothing_written(solver):
    x, out = np.ones((4, 3), np.float32), np.full((5000, 3), 7, np.float32)
    indices = np.arange(5000) % 4
    for at, bad in ((4999, 4), (4500, -5), (17, 2**40)):  # the first one counts
        indices[at] = bad
        with forced("gather", solver):
            with pytest.raises(IndexError, match=rf"indices\[{at}\] is {bad}; of 4 elements the indices are -4 to 3"):
                numbaprims.gather(x, indices, out=out)
        with pytest.raises(IndexError, match=rf"indices\[{at}\]"):
            numbaprims.gather_backward(out, indices, 4, out=x)
    assert (out == 7).all() and (x == 1).all()
    with pytest.raises(IndexError, match=r"indices\[1, 0\] is 9"):
        numbaprims.gather(x, np.array([[0, 1], [9, 8]]))
    with pytest.raises(TypeError, match="indices are int32 or int64"):
        numbaprims.gather(x, np.float32([1]))
    with pytest.raises(ValueError, match="no elements along axis 0"):
        numbaprims.gather(x[:0], np.array([0]))


def test_gradients_of_halves_are_summed_in_float32():
    dy = np.full((5000, 3), 0.001, np.float16)
    dx = numbaprims.gather_backward(dy, np.zeros(5000, np.int32), 2)
    np.testing.assert_allclose(dx, [[5000 * float(dy[0, 0])] * 3, [0, 0, 0]], rtol=1e-3)


def test_embeddings(rng):
    weight, indices = rng.standard_normal((9, 5)), rng.integers(-9, 9, (4, 6))
    np.testing.assert_array_equal(numbaprims.embedding(weight, indices, padding_idx=2), weight[indices])
    dy = rng.standard_normal((4, 6, 5))
    want, counts = np.zeros((9, 5)), np.zeros((9, 1))
    np.add.at(want, indices % 9, dy)
    np.add.at(counts, indices % 9, 1)
    want[2] = 0
    np.testing.assert_allclose(numbaprims.embedding_backward(dy, indices, 9, 2), want, rtol=1e-12)
    scaled = numbaprims.embedding_backward(dy, indices, 9, -7, scale_grad_by_freq=True)
    np.testing.assert_allclose(scaled, want / np.maximum(counts, 1), rtol=1e-12)
    with pytest.raises(ValueError, match="padding_idx is 9"):
        numbaprims.embedding(weight, indices, 9)
    with pytest.raises(TypeError, match="weight is big-endian"):
        numbaprims.embedding(weight.astype(">f4"), indices)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "int8"])
def test_rows_that_are_one_at_an_index(axis, dtype, rng):
    indices = rng.integers(-5, 7, (4, 6))
    places = np.where(indices < 0, indices + 5, indices)
    want = np.moveaxis(places[..., None] == np.arange(5), -1, axis).astype(dtype)
    np.testing.assert_array_equal(numbaprims.one_hot(indices, 5, axis=axis, dtype=dtype), want)
    out = np.full(want.shape[::-1], 9, dtype).T
    assert numbaprims.one_hot(indices.astype(np.int32), 5, axis=axis, dtype=dtype, out=out) is out
    np.testing.assert_array_equal(out, want)
    if dtype != "bool":
        on = numbaprims.one_hot(indices[::2], 5, axis=axis, on_value=3, off_value=-1, dtype=dtype)
        np.testing.assert_array_equal(on, np.take(np.where(want, 3, -1), [0, 2], {-1: 0, 0: 1, 1: 0}[axis]))
    with pytest.raises(ValueError, match="depth is -1"):
        numbaprims.one_hot(indices, -1)
    with pytest.raises(ValueError, match="on_value is nan; .*integers from 0 to 255"):
        numbaprims.one_hot(indices, 5, on_value=np.nan, dtype="uint8")
    with pytest.raises(TypeError, match="off_value is '3'; it must be a real number"):
        numbaprims.one_hot(indices, 5, off_value="3")
    for device in ("cpu", "reference"):
        with numbaprims.config(device=device):
            assert numbaprims.one_hot(indices, 5, on_value=2**63).max() == 2.0**63


def test_parts(rng):
    x = rng.standard_normal((6, 10, 4), np.float32)
    for axis, sizes, lengths in ((1, (3, 0, 7), (3, 0, 7)), (0, 4, (2, 2, 2, 0)), (2, 2, (2, 2)), (-2, 1, (10,))):
        for given in (x, x.copy("F")):
            for _ in range(3):  # the third call is known
                parts = numbaprims.split(given, sizes, axis)
                assert tuple(part.shape[axis] for part in parts) == lengths
                assert all(part.flags.c_contiguous and not np.shares_memory(part, x) for part in parts)
                np.testing.assert_array_equal(np.concatenate(parts, axis), x)
    many = numbaprims.split(np.arange(40), 20)
    np.testing.assert_array_equal(np.stack(many), np.arange(40).reshape(20, 2))


def test_bfloat16_moves_and_sums():
    x = caller_array(np.arange(12.0).reshape(3, 4), "bf16")
    padded = numbaprims.pad(x, 1, value=2.0)
    assert padded.dtype == x.dtype and float(padded[0, 0]) == 2.0 and float(padded[3, 4]) == 11.0
    assert float(numbaprims.gather(x, np.array([2, -1]))[1, 3]) == 11.0
    assert float(numbaprims.gather_backward(x, np.array([1, 1, 0]), 2)[1, 3]) == 10.0


def test_every_solver_has_its_kinds():
    names = [solver.name for solver in registry.solvers("gather", "cpu")]
    assert names == ["crop", "rows", "fold", "gather", "scatter", "one_hot", "split", "naive"]


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
rng = np.random.default_rng(0)
x, dy, at = rng.standard_normal((16, 32, 40, 41), np.float32), rng.standard_normal((20000, 64), np.float32), None
at = rng.integers(-300, 300, 20000)
found = [*(numbaprims.pad_backward(numbaprims.pad(x, 3, m), x.shape, 3, m) for m in ("reflect", "edge", "wrap")),
         numbaprims.gather_backward(dy, at, 300), numbaprims.embedding_backward(dy, at, 300, scale_grad_by_freq=True),
         numbaprims.gather(dy, at), *numbaprims.split(dy, 3, 1)]
print(hashlib.sha256(b"".join(y.tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1
