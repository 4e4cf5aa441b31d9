"""Straight-line code for short discrete Fourier transforms of real and complex vectors (Cooley and Tukey 1965).

X[k] = sum over i of x[i] e^(-2 pi sqrt(-1) i k / n), n a power of two.  The spectrum of real values is kept as n real
numbers, "half-complex": Re X[0 .. n/2 - 1], then Re X[n/2] and Im X[1 .. n/2 - 1].  Programs are texts as
`numbaprims.cook_toom.program` makes them; both devices' kernels run them on vectors.
"""

from __future__ import annotations

import math
from fractions import Fraction

from numbaprims.cook_toom import Writer

# A value of a program and its sign; None is zero.
Term = tuple[int, int] | None
Complex = tuple[Term, Term]


def _twiddle(k: int, n: int) -> tuple[Fraction, Fraction]:
    """Cosine and sine of 2 pi k / n, exact where they are 0 or 1."""
    turn = Fraction(k, n) % 1
    exact = {Fraction(0): (1, 0), Fraction(1, 4): (0, 1), Fraction(1, 2): (-1, 0), Fraction(3, 4): (0, -1)}
    if turn in exact:
        return Fraction(exact[turn][0]), Fraction(exact[turn][1])
    return Fraction(math.cos(2 * math.pi * turn)), Fraction(math.sin(2 * math.pi * turn))


class _Signed:
    """Sums of values whose sign is carried along and whose zeros are left out."""

    def __init__(self, inputs: int) -> None:
        self.writer = Writer(inputs)

    def add(self, a: Term, b: Term) -> Term:
        """a + b."""
        if a is None or b is None:
            return a if b is None else b
        (x, sign), (y, other) = a, b
        if sign == other:
            return self.writer.emit(f"add {x} {y}"), sign
        return (self.writer.emit(f"sub {x} {y}"), 1) if sign > 0 else (self.writer.emit(f"sub {y} {x}"), 1)

    def sub(self, a: Term, b: Term) -> Term:
        """a - b."""
        return self.add(a, _negated(b))

    def scaled(self, a: Term, factor: Fraction) -> Term:
        """factor * a."""
        if a is None or factor == 0:
            return None
        if abs(factor) == 1:
            return a[0], a[1] * int(factor)
        return self.writer.emit(f"mul {a[0]} {factor}"), a[1]

    def scaled_plus(self, a: Term, factor: Fraction, b: Term) -> Term:
        """factor * a + b."""
        if a is None or factor == 0:
            return b
        if b is None or abs(factor) == 1:
            return self.add(self.scaled(a, factor), b)
        return self.writer.emit(f"fma {a[0]} {factor * a[1] * b[1]} {b[0]}"), b[1]

    def turned(self, z: Complex, cosine: Fraction, sine: Fraction) -> Complex:
        """z (cosine + sqrt(-1) sine)."""
        re, im = z
        if abs(cosine) == abs(sine):  # an eighth of a turn: one multiplication a part
            signs = cosine / abs(cosine), sine / abs(sine)
            real = self.add(self.scaled(re, signs[0]), self.scaled(im, -signs[1]))
            imaginary = self.add(self.scaled(re, signs[1]), self.scaled(im, signs[0]))
            return self.scaled(real, abs(cosine)), self.scaled(imaginary, abs(cosine))
        return (
            self.scaled_plus(im, -sine, self.scaled(re, cosine)),
            self.scaled_plus(im, cosine, self.scaled(re, sine)),
        )

    def transform(self, z: list[Complex], sign: int) -> list[Complex]:
        """The transform with e^(sign 2 pi sqrt(-1) i k / n)."""
        n = len(z)
        if n == 1:
            return z
        even, odd = self.transform(z[::2], sign), self.transform(z[1::2], sign)
        first, second = [], []
        for k in range(n // 2):
            cosine, sine = _twiddle(k, n)
            re, im = self.turned(odd[k], cosine, sign * sine)
            first.append((self.add(even[k][0], re), self.add(even[k][1], im)))
            second.append((self.sub(even[k][0], re), self.sub(even[k][1], im)))
        return first + second

    def ended(self, values: list[Term]) -> str:
        """The program with these outputs."""
        outputs = []
        for term in values:
            if term is None:
                outputs.append(self.writer.emit("zero"))
            else:
                outputs.append(term[0] if term[1] > 0 else self.writer.emit(f"neg {term[0]}"))
        return ";".join([*self.writer.lines, "out " + " ".join(map(str, outputs))])


def _negated(a: Term) -> Term:
    return None if a is None else (a[0], -a[1])


def _check(n: int) -> None:
    if n < 2 or n & (n - 1):
        raise ValueError(f"n is {n}; it must be a power of two from 2")


def real_forward(n: int) -> str:
    """Code for the half-complex spectrum of n real values.

    >>> real_forward(2)
    'add 0 1;sub 0 1;out 2 3'
    """
    _check(n)
    code = _Signed(n)
    z = code.transform([((i, 1), None) for i in range(n)], -1)
    half = n // 2
    return code.ended([z[k][0] for k in range(half)] + [z[half][0]] + [z[k][1] for k in range(1, half)])


def real_backward(n: int) -> str:
    """Code for n times the real values that have a half-complex spectrum.

    >>> real_backward(2)
    'add 0 1;sub 0 1;out 2 3'
    """
    _check(n)
    half = n // 2
    code = _Signed(n)
    spectrum: list[Complex] = [((0, 1), None)]
    spectrum += [((k, 1), (half + k, 1)) for k in range(1, half)]
    spectrum += [((half, 1), None)]
    spectrum += [((k, 1), (half + k, -1)) for k in range(half - 1, 0, -1)]
    return code.ended([z[0] for z in code.transform(spectrum, 1)])


def complex_forward(n: int) -> str:
    """Code for the spectrum of n complex values, all real parts before all imaginary ones, in and out.

    >>> complex_forward(2)
    'add 0 1;add 2 3;sub 0 1;sub 2 3;out 4 6 5 7'
    """
    return _complex(n, -1)


def complex_backward(n: int) -> str:
    """Code for n times the complex values that have a spectrum.

    >>> complex_backward(2)
    'add 0 1;add 2 3;sub 0 1;sub 2 3;out 4 6 5 7'
    """
    return _complex(n, 1)


def _complex(n: int, sign: int) -> str:
    _check(n)
    code = _Signed(2 * n)
    z = code.transform([((i, 1), (n + i, 1)) for i in range(n)], sign)
    return code.ended([re for re, _ in z] + [im for _, im in z])
