"""Rotary position embedding beside what the contract suite holds: its tables, positions, bits, `@njit`."""

import dataclasses

import numpy as np
import pytest
from helpers import printed_with_threads
from test_jitted import check, compiled

import numbaprims
from numbaprims import libraries
from numbaprims.cpu import target
from numbaprims.cpu.rates import PROFILES


def rotated(x, angles, interleaved):
    """By complex numbers."""
    half = angles.shape[-1]
    a, b = (
        (x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]) if interleaved else (x[..., :half], x[..., half : 2 * half])
    )
    z = (a + 1j * b) * np.exp(1j * angles)
    y = x.copy()
    if interleaved:
        y[..., : 2 * half : 2], y[..., 1 : 2 * half : 2] = z.real, z.imag
    else:
        y[..., :half], y[..., half : 2 * half] = z.real, z.imag
    return y


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [8, 15, 64, 130])
def test_pairs_are_turned_by_their_angles(rng, width, interleaved):
    x, dims = rng.standard_normal((2, 3, 7, width)), width // 2 // 2 * 2
    cos, sin = numbaprims.rope_frequencies(20, dims, base=500.0, dtype=np.float64)
    angles = np.arange(20.0)[:, None] * 500.0 ** (-2 * np.arange(dims // 2) / dims)
    places = rng.integers(0, 20, (2, 7))
    y = numbaprims.rope(x, cos, sin, positions=places, interleaved=interleaved, rotary_dims=dims)
    np.testing.assert_allclose(y, rotated(x, angles[places][:, None], interleaved), atol=1e-13)
    back = numbaprims.rope_backward(y, cos, sin, positions=places, interleaved=interleaved)
    np.testing.assert_allclose(back, x, atol=1e-13)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [64, 128, 136])
def test_results_that_leave_past_the_caches_are_the_same(rng, as_cpu, width, interleaved):
    """Rows that begin with a line, others, in place, and with a part that is not turned."""
    x = rng.standard_normal((3, 9, width)).astype(np.float32)
    cos, sin = numbaprims.rope_frequencies(9, 64)
    turned = {"interleaved": interleaved, "rotary_dims": 64}
    want = numbaprims.rope(x, cos, sin, **turned)
    as_cpu(dataclasses.replace(target.current(), l3=1 << 12, measured=PROFILES["sapphirerapids"]))
    room = libraries.aligned_empty((x.size + 1,), np.float32)
    for first in (0, 1):
        out = room[first : first + x.size].reshape(x.shape)
        numbaprims.rope(x, cos, sin, out=out, **turned)
        np.testing.assert_array_equal(out, want)
        out[:] = x
        numbaprims.rope(out, cos, sin, out=out, **turned)
        np.testing.assert_array_equal(out, want)


def test_scores_depend_on_the_distance_only(rng):
    q, k = rng.standard_normal((2, 1, 16))
    cos, sin = numbaprims.rope_frequencies(40, 16, dtype="float64")

    def score(i, j):
        turned = [numbaprims.rope(x, cos, sin, positions=np.array([at])) for x, at in ((q, i), (k, j))]
        return float((turned[0] * turned[1]).sum())

    np.testing.assert_allclose(score(3, 10), score(25, 32), rtol=1e-12)


def test_in_place_and_tables_in_float32(rng):
    x = rng.standard_normal((2, 5, 18)).astype(np.float16)
    cos, sin = numbaprims.rope_frequencies(5, 12)
    y = numbaprims.rope(x, cos, sin)
    np.testing.assert_allclose(y, numbaprims.rope(x.astype(np.float32), cos, sin), atol=4e-3)
    assert numbaprims.rope(x, cos, sin, out=x) is x
    np.testing.assert_array_equal(x, y)


def test_refusals(rng):
    x, (cos, sin) = rng.standard_normal((2, 3, 5, 8)), numbaprims.rope_frequencies(5, 6, dtype="float64")
    out = np.full(x.shape, 7.0)
    for words, error, message in (
        ({"positions": np.array([0, 1, 2, 3, 5])}, ValueError, "positions holds 5; cos has rows from 0 to 4"),
        ({"positions": np.array([0, -1, 2, 3, 4])}, ValueError, "positions holds -1"),
        ({"positions": np.zeros(4, int)}, ValueError, r"positions is .* it must be \(5,\) or \(2, 5\)"),
        ({"positions": np.zeros(5)}, TypeError, "it must be int64 or int32"),
        ({"rotary_dims": 8}, ValueError, "rotary_dims is 8"),
        ({"sin": sin[:, :2]}, ValueError, "it must have the shape of cos"),
        ({"sin": sin.astype(np.float32)}, TypeError, "they must be of x's type"),
        ({"cos": cos[:4], "sin": sin[:4]}, ValueError, r"it must be \(5, 3\)"),
        ({"x": x[..., :5]}, ValueError, "which is less than 6"),
    ):  # fmt: skip
        given = {"x": x, "cos": cos, "sin": sin, **words}
        with pytest.raises(error, match=message):
            numbaprims.rope(given.pop("x"), given.pop("cos"), given.pop("sin"), out=out, **given)
    assert (out == 7).all()
    for length, dims, base in ((-1, 4, 1.0), (3, 5, 10.0), (3, 4, 0.0)):
        with pytest.raises(ValueError, match="dims must be even"):
            numbaprims.rope_frequencies(length, dims, base=base)
    with pytest.raises(TypeError, match="it must be float64"):
        numbaprims.rope_frequencies(3, 4, dtype="int32")


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
x = np.random.default_rng(0).standard_normal((2, 9, 700, 66), np.float32)
cos, sin = numbaprims.rope_frequencies(700, 60)
found = [numbaprims.rope(x, cos, sin), numbaprims.rope(x.swapaxes(1, 2), cos[:9], sin[:9], interleaved=True)]
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


@pytest.mark.cpu
def test_in_njit(rng):
    x = rng.standard_normal((2, 3, 5, 12)).astype(np.float32)
    cos, sin = numbaprims.rope_frequencies(9, 8)
    places = rng.integers(0, 9, (2, 5))
    for text in (
        "nb.rope(x, c, s, positions=p, interleaved=True)", "nb.rope_backward(x, c[:5], s[:5], out=y)",
        "nb.rope(x, c, s, positions=p, rotary_dims=8)",
    ):  # fmt: skip
        check("x, c, s, p, y", text, x, cos, sin, places, np.empty_like(x))
    with pytest.raises(ValueError, match="positions holds 9"):
        compiled("x, c, s, p", "nb.rope(x, c, s, positions=p)")[0](x, cos, sin, places * 0 + 9)
