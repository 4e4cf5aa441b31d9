"""The straight-line programs of short Fourier transforms, against numpy.fft."""

import doctest
from fractions import Fraction

import numpy as np
import pytest

from numbaprims import fourier
from numbaprims.cook_toom import run


def computed(code, values):
    return np.array([float(x) for x in run(code, tuple(Fraction(float(v)) for v in values))])


def half_complex(x, n):
    z = np.fft.fft(x, n)
    return np.concatenate([z.real[: n // 2], z.real[n // 2 : n // 2 + 1], z.imag[1 : n // 2]])


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_real(n, rng):
    x = rng.standard_normal(n)
    spectrum = half_complex(x, n)
    np.testing.assert_allclose(computed(fourier.real_forward(n), x), spectrum, atol=1e-14 * n)
    np.testing.assert_allclose(computed(fourier.real_backward(n), spectrum), n * x, atol=1e-13 * n)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_complex(n, rng):
    z = rng.standard_normal(n) + 1j * rng.standard_normal(n)
    want = np.fft.fft(z)
    got = computed(fourier.complex_forward(n), [*z.real, *z.imag])
    np.testing.assert_allclose(got[:n] + 1j * got[n:], want, atol=1e-13 * n)
    back = computed(fourier.complex_backward(n), [*want.real, *want.imag])
    np.testing.assert_allclose(back[:n] + 1j * back[n:], n * z, atol=1e-12 * n)


def test_the_programs_are_short():
    """A transform of 16 complex values by its matrix would take 1,024 multiply-adds."""
    for code, most in ((fourier.complex_forward(16), 200), (fourier.complex_forward(32), 500)):
        assert code.count(";") <= most


def test_refusals_and_examples():
    for n in (0, 1, 3):
        with pytest.raises(ValueError, match="power of two"):
            fourier.real_forward(n)
    failed, tried = doctest.testmod(fourier)
    assert failed == 0 < tried
