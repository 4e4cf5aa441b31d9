"""Cells of recurrent networks: gates before their activation in, the new state out.

A machine gives its exponentials and quotients: `exp(x, factor, highest)` is e**(factor x), at most e**highest, and
`expm1(x, factor)` is e**(factor x) - 1.  Quotients take longest here, so that products of gates share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.formulas.elementary import Quotient
from numbaprims.formulas.value import V, at_most, mad, magnitude, negative, select, with_sign_of


class Machine(NamedTuple):
    """What a machine computes its exponentials and quotients by."""

    exp: Callable[..., Any]
    expm1: Callable[..., Any]
    quotient: Quotient[Any]


#: e**x that a sum with 1 does not overflow, and 2 |x| whose tanh is 1: by bits of a float.
HIGHEST = {32: 80.0, 64: 700.0}
FAR = {32: 10.0, 64: 20.0}
#: Below, a state is 0: subnormal numbers took 1.7 times as long (Zen 4).
TINY = {32: 1e-36, 64: 1e-300}


def _one_more(x: V, on: Machine) -> V:
    """1 / sigmoid(x)."""
    return on.exp(x, -1.0, HIGHEST[x.width]) + 1.0


def sigmoid(x: V, on: Machine) -> V:
    """1 / (1 + e**-x)."""
    return on.quotient(x.like(1.0), _one_more(x, on))


def _parts_of_tanh(x: V, on: Machine) -> tuple[V, V]:
    """(a, b) with tanh |x| = a / b."""
    m = on.expm1(at_most(magnitude(x), FAR[x.width]), -2.0)
    return negative(m), m + 2.0


def tanh(x: V, on: Machine) -> V:
    """(1 - e**-2|x|) / (1 + e**-2|x|), of x's sign."""
    a, b = _parts_of_tanh(x, on)
    return with_sign_of(on.quotient(a, b), x)


def gated(gate: V, x: V, on: Machine) -> V:
    """sigmoid(gate) tanh(x) by one quotient."""
    a, b = _parts_of_tanh(x, on)
    return with_sign_of(on.quotient(a, _one_more(gate, on) * b), x)


def _flushed(x: V) -> V:
    return select(magnitude(x) < TINY[x.width], x.like(0.0), x)


def lstm(
    gates: list[V], c: V, peepholes: list[V], on: Machine, bounded: Callable[[V], V] = lambda x: x
) -> tuple[V, V]:  # fmt: skip
    """(h, c) of the gates i, f, g, o: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c')."""
    i, f, g, o = gates
    if peepholes:
        i, f = mad(peepholes[0], c, i), mad(peepholes[1], c, f)
    new = _flushed(on.quotient(c, _one_more(bounded(f), on)) + gated(bounded(i), bounded(g), on))
    if peepholes:
        o = mad(peepholes[2], new, o)
    return _flushed(gated(bounded(o), new, on)), new


def lstm_saved(gates: list[V], c: V, peepholes: list[V], on: Machine) -> tuple[V, V, list[V]]:
    """The same with what the gradient reads: i, f, g, o behind their activations."""
    i, f, g, o = gates
    if peepholes:
        i, f = mad(peepholes[0], c, i), mad(peepholes[1], c, f)
    i, f, g = sigmoid(i, on), sigmoid(f, on), tanh(g, on)
    new = _flushed(mad(f, c, i * g))
    if peepholes:
        o = mad(peepholes[2], new, o)
    o = sigmoid(o, on)
    return _flushed(o * tanh(new, on)), new, [i, f, g, o]


def gru_new(z: V, n: V, h: V) -> V:
    """h' = (1 - z) n + z h."""
    return _flushed(mad(z, h - n, n))


def slope_of_tanh(t: V) -> V:
    """1 - t**2: the slope of tanh where it is t."""
    return mad(negative(t), t, t.like(1.0))


def lstm_backward(
    dh: V, dc: V, gates: list[V], c: V, c_before: V, peepholes: list[V], on: Machine
) -> tuple[list[V], V]:
    """(gradients of i, f, g, o before their activations, the gradient of the c before)."""
    i, f, g, o = gates
    t = tanh(c, on)
    do = (dh * t) * (o * (1.0 - o))
    dc = mad(dh * o, slope_of_tanh(t), dc)
    if peepholes:
        dc = mad(do, peepholes[2], dc)
    di = (dc * g) * (i * (1.0 - i))
    df = (dc * c_before) * (f * (1.0 - f))
    dg = (dc * i) * slope_of_tanh(g)
    before = dc * f
    if peepholes:
        before = mad(di, peepholes[0], mad(df, peepholes[1], before))
    return [di, df, dg, do], before


def gru_backward(dh: V, gates: list[V], recurrent: V, h: V) -> tuple[list[V], V, V]:
    """(gradients of r, z, n before their activations, of n's recurrent sum, of h without what the products add)."""
    r, z, n = gates
    dn = (dh * (1.0 - z)) * slope_of_tanh(n)
    dz = (dh * (h - n)) * (z * (1.0 - z))
    dr = (dn * recurrent) * (r * (1.0 - r))
    return [dr, dz, dn], dn * r, dh * z
