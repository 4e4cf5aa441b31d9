"""The pointwise engine on a GPU: ends of runs, broadcasting, types of several sizes, 64 bits, in the emulator."""

import numpy as np
import pytest

import numbaprims
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.pointwise import walk


def entries(gpu):
    """(loops, V, indices of 64 bits) of what was launched."""
    words = [launched.entry.split("_") for launched in gpu.launches]
    return [(int(loops), int(V), wide == "True") for *_, V, loops, wide, _ in words]


def padded(rng, *shape):
    """Values in runs that begin at multiples of 16 bytes, and the array that they are cut from, on the device."""
    base = rng.standard_normal((*shape[:-1], -(-shape[-1] // 4) * 4 + 4)).astype(np.float32)
    return base[..., : shape[-1]], to_device(base)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 11])
def test_ends_of_runs(gpu, rng, n):
    """Packs, then what is left behind them; what lies between runs stays."""
    (a, whole_a), (b, whole_b) = padded(rng, 3, 5, n), padded(rng, 3, 5, n)
    out = to_device(np.full((3, 5, n + 4 - n % 4), np.nan, np.float32))
    numbaprims.binary(whole_a[..., :n], whole_b[..., :n], "sub", out=out[..., :n])
    found = out.to_host()
    np.testing.assert_array_equal(found[..., :n], a - b)
    assert np.isnan(found[..., n:]).all()
    assert entries(gpu) == [(2, 1 if n == 1 else 2 if n < 4 else 4, False)] or n == 1


def test_broadcasting(gpu, rng):
    """Along every loop: a run of one element, a run for all, one element for all."""
    a = rng.standard_normal((3, 4, 8)).astype(np.float32)
    for shape in ((1, 4, 8), (3, 1, 8), (3, 4, 1), (1, 4, 1), (3, 1, 1), (8,), (1,)):
        b = rng.standard_normal(shape).astype(np.float32)
        for x, y in ((a, b), (b, a)):
            found = numbaprims.binary(to_device(x), to_device(y), "sub").to_host()
            np.testing.assert_array_equal(found, x - y)
    assert {V for _, V, _ in entries(gpu)} == {4}


def test_operands_apart_take_single_elements(gpu, rng):
    a, b = rng.standard_normal((2, 6, 8)).astype(np.float32)
    given, other = to_device(a), to_device(b)
    for cut in (np.s_[:, ::-1], np.s_[::2, ::3], np.s_[::-1]):
        found = numbaprims.binary(given[cut], other[cut], "sub").to_host()
        np.testing.assert_array_equal(found, a[cut] - b[cut])
    np.testing.assert_array_equal(numbaprims.binary(given, to_device(b.T.copy()).T, "sub").to_host(), a - b)
    assert [V for _, V, _ in entries(gpu)] == [1, 1, 4, 1]


@pytest.mark.parametrize(
    ("source", "to", "V"), [("i8", "f64", 2), ("f64", "i8", 2), ("f16", "f32", 4), ("i8", "u8", 16)]
)
def test_sizes_of_several_types(gpu, rng, source, to, V):
    """The largest element decides how many a pack has."""
    names = {"i8": "int8", "u8": "uint8", "f16": "float16", "f32": "float32", "f64": "float64"}
    x = rng.integers(0, 100, 67).astype(names[source])
    np.testing.assert_array_equal(numbaprims.cast(to_device(x), names[to]).to_host(), x.astype(names[to]))
    assert entries(gpu) == [(1, V, False)]


def test_64_bits(gpu, monkeypatch, rng):
    """More elements than 32 bits count: the same results from indices of 64."""
    monkeypatch.setattr(walk, "MOST", 100)
    x = rng.standard_normal(1300).astype(np.float32)
    np.testing.assert_array_equal(numbaprims.relu(to_device(x)).to_host(), np.maximum(x, 0))
    a, whole = padded(rng, 3, 30, 7)
    out = to_device(np.zeros(whole.shape, np.float32))
    numbaprims.relu(whole[..., :7], out=out[..., :7])
    np.testing.assert_array_equal(out.to_host()[..., :7], np.maximum(a, 0))
    np.testing.assert_array_equal(
        numbaprims.relu(whole[::2, ::3, ::2]).to_host(), np.maximum(whole.to_host()[::2, ::3, ::2], 0)
    )
    assert entries(gpu) == [(1, 4, True), (2, 4, True), (3, 1, True)]


def test_reciprocals_divide(rng):
    """Of every divisor and dividend below 2**31: those around multiples, and drawn ones."""
    most = 2**31 - 1
    for d in [*range(1, 70), 255, 256, 257, 2**30, 2**30 + 1, most, *map(int, rng.integers(1, most, 500))]:
        m, s = walk.reciprocal(d)
        x = np.array([k * d + e for k in (1, 2, most // d) for e in (-1, 0, 1)] + [0, most, *rng.integers(0, most, 9)])
        x = x[(x >= 0) & (x <= most)].astype(object)
        assert m < 2**32 and all((2 * x * m >> 32) >> s == x // d), d


@pytest.mark.parametrize(("rows", "columns", "V"), [(64, 64, 4), (70, 100, 2), (67, 33, 1), (16, 132, 4)])
def test_operands_that_lie_the_other_way(gpu, rng, rows, columns, V):
    """Tiles and their edges, by shared memory; beside operands in the results' order, or one element for all."""
    a, b = rng.standard_normal((3, rows, columns)).astype(np.float32), rng.standard_normal((columns, rows))
    b = b.astype(np.float32)
    for other, host in ((to_device(a), a), (to_device(a[:, :, :1].copy()), a[:, :, :1])):
        found = numbaprims.binary(other, to_device(b).T, "sub", out=to_device(np.full_like(a, np.nan))).to_host()
        np.testing.assert_array_equal(found, host - b.T)
    found = numbaprims.transform(to_device(a), axes=(0, 2, 1)).to_host()
    np.testing.assert_array_equal(found, a.transpose(0, 2, 1))
    assert all("turned" in launched.entry for launched in gpu.launches)
    assert {each[1] for each in entries(gpu)} == {V}


def test_halves_that_lie_the_other_way(gpu, rng):
    x = rng.standard_normal((2, 40, 72)).astype(np.float16)
    assert (numbaprims.transform(to_device(x), axes=(0, 2, 1)).to_host() == x.transpose(0, 2, 1)).all()
    assert entries(gpu) == [(3, 8, False)]
