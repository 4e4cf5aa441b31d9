"""Calls that native code recognises by their arrays: what it must see before it runs an earlier call's program."""

import concurrent.futures
import sys
import warnings

import helpers
import numpy as np
import pytest

import numbaprims
from numbaprims.dispatch import fast_path
from numbaprims.ops import _activation_call, primitive


@pytest.fixture(autouse=True)
def fresh():
    numbaprims.dispatch.call.forget()
    fast_path.arm()  # else it learns two calls after the first of a process


def recognised(call):
    return helpers.recognised(call, primitive, "_enter")


def test_repeated_calls_are_recognised(rng):
    x, dy = rng.standard_normal((2, 7, 9)).astype(np.float32)
    out = np.empty_like(x)
    for call, want in (
        (lambda: numbaprims.relu(x), np.maximum(x, 0)),
        (lambda: numbaprims.relu(x, out=out), np.maximum(x, 0)),
        (lambda: numbaprims.activation(x, "clip", min=-0.5, max=0.5, out=out), np.clip(x, -0.5, 0.5)),
        (lambda: numbaprims.abs(x.T), np.abs(x.T)),
        (lambda: numbaprims.square(x[:, ::2]), x[:, ::2] ** 2),
        (lambda: numbaprims.square_backward(dy, x), 2 * dy * x),
        (lambda: numbaprims.exp_backward(dy, x, out=out), dy * x),
        (lambda: numbaprims.identity_backward(dy), dy),
    ):
        known, result = recognised(call)
        assert known
        np.testing.assert_allclose(result, want, rtol=1e-6)


def test_numbers_of_a_kind_are_not_remembered():
    x = np.array([-2.0, 2.0], np.float32)
    for slope in (0.5, 0.25, 0.5, 0.125, 0.25):
        np.testing.assert_array_equal(numbaprims.leaky_relu(x, slope), [-2 * slope, 2])


def test_every_property_of_an_array_counts(rng):
    base = rng.standard_normal((12, 12))
    out = np.empty((6, 6), np.float32)
    x = base[:6, :6].astype(np.float32)
    assert recognised(lambda: numbaprims.abs(x, out=out))[0]
    wide = np.zeros((6, 12), np.float32)
    unaligned = np.zeros(6 * 6 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(6, 6)
    for other in (
        x.T,
        x[::-1],
        x[:, ::-1],
        wide[:, ::2],
        np.asfortranarray(x),
        unaligned,
        np.broadcast_to(x[0], (6, 6)),
    ):
        if other.flags.writeable:
            other[...] = base[:6, :6]
        for _ in range(3):
            np.testing.assert_array_equal(numbaprims.abs(other, out=out), np.abs(other))
    with warnings.catch_warnings():  # NumPy 2.5 deprecates it; it is still the same object
        warnings.simplefilter("ignore", DeprecationWarning)
        x.shape = (36,)
    for _ in range(3):
        with pytest.raises(ValueError, match="shape"):
            numbaprims.abs(x, out=out)
        assert numbaprims.abs(x).shape == (36,)
    for dtype in (np.float64, np.float16, ">f4"):
        swapped = base[:6, :6].astype(dtype)
        for _ in range(3):
            if dtype == ">f4":
                with pytest.raises(TypeError):
                    numbaprims.abs(swapped, out=out)
            else:
                result = numbaprims.abs(swapped)
                assert result.dtype == dtype
                np.testing.assert_array_equal(result, np.abs(swapped))


def test_what_may_not_be_written_is_refused():
    x = np.full(10, -1.0, np.float32)
    out = np.empty(10, np.float32)
    assert recognised(lambda: numbaprims.abs(x, out=out))[0]
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only|writ"):
        numbaprims.abs(x, out=out)
    room = np.zeros(32, np.float32)
    for begin in (1, 9):
        with pytest.raises(ValueError, match="overlap|shares|memory"):
            numbaprims.abs(room[:10], out=room[begin : begin + 10])
    numbaprims.abs(room[:10], out=room[10:20])
    with pytest.raises(TypeError):
        numbaprims.abs(x, out=[0.0] * 10)


def test_in_place_and_beside_are_two_calls():
    x, out = np.full(10, -1.0, np.float32), np.empty(10, np.float32)
    for target in (out, x[:], out, x):
        source = x if target is not x else x
        for _ in range(3):
            source[:] = -1
            assert (numbaprims.abs(source, out=target) == 1).all()
    dy = np.full(10, 3.0, np.float32)
    for target in (out, dy[:], x[:], out):
        for _ in range(3):
            x[:], dy[:] = 2, 3
            assert (numbaprims.square_backward(dy, x, out=target) == 12).all()


def test_more_layouts_than_a_table_holds(rng, monkeypatch):
    from numbaprims.cpu import known_table

    monkeypatch.setattr(known_table, "MOST_RECORDS", 16)
    for _ in range(3):
        for n in range(1, 40):
            x = rng.standard_normal(n).astype(np.float32)
            np.testing.assert_array_equal(numbaprims.abs(x), np.abs(x))
    (table,) = _activation_call.FORWARD._known_calls._tables.values()
    assert 8 < len(table[2].records) <= 16


def test_settings_are_seen(capfd):
    x = np.ones(5, np.float32)
    assert recognised(lambda: numbaprims.abs(x))[0]
    with numbaprims.config(verbose=1):
        numbaprims.abs(x)
    assert "--kind abs" in capfd.readouterr().err
    with numbaprims.config(algorithm={"activation": "naive"}, verbose=1):
        numbaprims.abs(x)
    assert "naive" in capfd.readouterr().err
    with numbaprims.config(device="reference"):
        assert not recognised(lambda: numbaprims.abs(x))[0]


def normalised(x, out=None, running=True, scale=None):
    """A call of several results and operands, some of them not given."""
    ones = np.ones(x.shape[1], np.float32) if scale is None else scale
    statistics = (ones - 1, ones) if running else (None, None)
    return numbaprims.batch_norm_train(x, ones, ones - 1, *statistics, out=out)


@pytest.fixture
def unknown(monkeypatch):
    return helpers.entered(monkeypatch, primitive, "_enter")


def test_calls_of_many_arrays_are_recognised(rng, unknown):
    x = rng.standard_normal((4, 3, 5, 5)).astype(np.float32)
    out = np.empty_like(x)
    for call in (
        lambda: normalised(x),
        lambda: normalised(x, out=out),
        lambda: normalised(x, running=False),
        lambda: normalised(x[:, :, ::-1]),
    ):
        first = [call() for _ in range(3)][0]
        unknown.clear()
        again = call()
        assert not unknown and len(again) == len(first)
        for a, b in zip(first, again, strict=True):
            assert a.dtype == b.dtype and a.strides == b.strides
            np.testing.assert_array_equal(a, b)
    assert call()[0].strides == np.empty_like(x[:, :, ::-1]).strides
    for _ in range(3):  # one dtype more under the same key
        half = normalised(x.astype(np.float16), scale=np.ones(3, np.float16))
        assert half[0].dtype == np.float16 and half[1].dtype == np.float32


def test_what_is_wrong_with_many_arrays_is_seen_again(rng, unknown):
    x, one = rng.standard_normal((4, 3, 5)).astype(np.float32), np.ones(3, np.float32)
    for _ in range(3):
        want = numbaprims.batch_norm(x, one, one, one, one)
    room = np.zeros(x.size + 7, np.float32)
    for wrong, error in (
        ((x, one, one, one, np.ones(4, np.float32)), ValueError),
        ((x, one, one, one.astype(np.float64), one), TypeError),
        ((x, one, one, None, one), TypeError),
        ((x, one, one, one, [1.0] * 3), TypeError),
    ):
        with pytest.raises(error):
            numbaprims.batch_norm(*wrong)
    inner, out = room[: x.size].reshape(x.shape), room[7:].reshape(x.shape)
    with pytest.raises(ValueError, match="memory"):
        numbaprims.batch_norm(inner, one, one, one, one, out=out)
    with pytest.raises(ValueError, match="memory"):
        numbaprims.batch_norm(x, one, one, room[:3], one, out=room[: x.size].reshape(x.shape))
    unknown.clear()
    np.testing.assert_array_equal(numbaprims.batch_norm(x, one, one, one, one), want)
    np.testing.assert_array_equal(numbaprims.batch_norm(x, one[::1].copy(), one, one, one), want)
    assert not unknown


def test_programs_with_scratch_memory_are_found_by_one_comparison(rng, unknown):
    x = rng.standard_normal((99, 400)).astype(np.float32).T
    want = numbaprims.softmax(x, axis=1)
    numbaprims.softmax(x, axis=1)
    unknown.clear()
    np.testing.assert_array_equal(numbaprims.softmax(x, axis=1), want)
    assert not unknown


def test_results_are_made_as_numpy_makes_them(rng):
    a, b = rng.standard_normal((2, 6, 8)).astype(np.float32)
    cases = (
        (lambda: numbaprims.binary(a, b, "add"), np.add(a, b)),
        (lambda: numbaprims.binary(a.T, b.T, "less"), np.less(a.T, b.T)),
        (lambda: numbaprims.binary(a[:, ::2], b[:, ::2], "mul"), a[:, ::2] * b[:, ::2]),
        (lambda: numbaprims.cast(a, "float16"), a.astype(np.float16)),
        (lambda: numbaprims.reduce(a, "max", 1), a.max(1)),
        (lambda: numbaprims.topk(a, 2), (-np.sort(-a)[:, :2].copy(), np.argsort(-a)[:, :2].copy())),
    )
    for call, want in cases:
        kept = [call() for _ in range(4)]
        before = sys.getrefcount(np.dtype(np.float32)), sys.getrefcount(None)
        for _ in range(1000):
            result = call()
        after = sys.getrefcount(np.dtype(np.float32)), sys.getrefcount(None)
        assert all(abs(x - y) < 100 for x, y in zip(before, after, strict=True))
        for found in (*kept, result):
            pairs = zip(found, want, strict=True) if isinstance(want, tuple) else ((found, want),)
            for x, y in pairs:
                np.testing.assert_array_equal(x, y)
                assert type(x) is np.ndarray and x.strides == y.strides and x.flags.writeable
        if not isinstance(want, tuple):
            assert result.flags.owndata and not any(np.may_share_memory(result, x) for x in kept)


def test_calls_of_several_threads_at_once(rng):
    """Programs that take several threads and are started by native code: one at a time, others wait their turn."""
    x = rng.standard_normal(1 << 19).astype(np.float32)
    want = x + x

    def work(_):
        out = np.empty_like(x)
        for _ in range(20):
            out[:] = 0
            assert numbaprims.binary(x, x, "add", out=out) is out
            if not np.array_equal(out, want):
                return False
            if not np.array_equal(numbaprims.binary(x, x, "add"), want):
                return False
        return True

    with numbaprims.config(threads=2):
        numbaprims.binary(x, x, "add")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))


def test_threads_are_part_of_what_is_known(rng):
    x = rng.standard_normal(1 << 19).astype(np.float32)
    for _ in range(3):
        for threads in (1, 2, 3):
            with numbaprims.config(threads=threads):
                np.testing.assert_array_equal(numbaprims.binary(x, x, "mul"), x * x)


def test_operands_that_are_no_tuple_go_the_long_way(rng):
    """Native code reads a tuple's memory, and looks first whether it is one."""
    from numbaprims.ops.tensor import _binary

    a, b = (rng.standard_normal(10).astype(np.float32) for _ in "ab")
    for given in ((a, b, None), (a, b, None), (a, b, None), [a, b, None], [a, b, None]):
        np.testing.assert_array_equal(_binary.run(given, ("add", False), (), None), a + b)
        np.testing.assert_array_equal(_binary.run(given, ("add", False), [], None), a + b)
