"""Finds the coefficients in numbaprims/polynomials.py: minimax polynomials by Remez exchange, with mpmath.

    python docs/notes/minimax.py [name ...]

A polynomial sum c_k x**k of given powers is fitted to f on an interval so that the largest weight * |error|
is as small as possible.  Coefficients are then rounded to float32 or float64 one after another from the
lowest power on, and those that are left are fitted again: that loses less than rounding all at once.
Both errors are printed as powers of 2, that of the exact polynomial and that of the rounded one.
"""

import sys

from mpmath import (
    asin,
    atan,
    atanh,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    expm1,
    frexp,
    ldexp,
    log,
    log1p,
    lu_solve,
    matrix,
    mp,
    mpf,
    nint,
    pi,
    polyval,
    sin,
    sinh,
    sqrt,
    tanh,
)

mp.dps = 45


def remez(f, powers, low, high, weight, points=400):
    """(coefficients, largest weighted error)"""
    grid = [x for x in chebyshev(low, high, points) if abs(x) > (high - low) / 500]  # at 0 there is nothing to fit
    # With this sign weighted powers do not change theirs at 0, so that the errors of the best fit alternate.
    sign = [-1 if x < 0 and powers[0] % 2 else 1 for x in grid]
    weights = [s * abs(weight(x)) for s, x in zip(sign, grid, strict=True)]
    rows = [[w * x**k for k in powers] for w, x in zip(weights, grid, strict=True)]
    return exchange(rows, [w * f(x) for w, x in zip(weights, grid, strict=True)])


def chebyshev(low, high, points):
    return [(low + high) / 2 - (high - low) / 2 * cos(pi * i / points) for i in range(points + 1)]


def exchange(rows, goal):
    """(coefficients, largest error) of the best sum of the columns of `rows`."""
    size = len(rows[0])
    chosen = [round((len(rows) - 1) * (1 - float(cos(pi * i / size))) / 2) for i in range(size + 1)]
    best = None
    for _ in range(40):
        system = matrix([[*rows[i], (-1) ** j] for j, i in enumerate(chosen)])
        *fitted, level = lu_solve(system, matrix([goal[i] for i in chosen]))
        error = [g - sum(c * t for c, t in zip(fitted, row, strict=True)) for g, row in zip(goal, rows, strict=True)]
        largest = max(map(abs, error))
        if best is None or largest < best[1]:
            best = fitted, largest
        if largest < abs(level) * mpf("1.0005"):
            break
        chosen = alternating(error, size + 1)
        if len(chosen) < size + 1:
            break
    return best


def quotient(f, degree, high, digits, points=600):
    """(coefficients of P, of Q, exact error, rounded error): f(x) = P(x) / Q(x) on [0, high], relative to f.

    P has this degree, Q one more and a leading 1, and P / Q is f at 0.  f Q - P is linear in the coefficients; it is
    fitted again and again with the Q before as a part of the weight.
    """
    grid = chebyshev(mpf(0), mpf(high), points)[1:]
    values = [f(x) for x in grid]
    q = [mpf(1) for _ in grid]
    for _ in range(12):
        rows = [
            [*(x**k / (v * d) for k in range(1, degree + 1)), *(-(x**k) / d for k in range(1, degree + 2))]
            for x, v, d in zip(grid, values, q, strict=True)
        ]
        fitted, _ = exchange(rows, [(v - f(0)) / (v * d) for v, d in zip(values, q, strict=True)])
        p_of, q_of = [f(0), *fitted[:degree]], [mpf(1), *fitted[degree:]]
        q = [polyval(q_of[::-1], x) for x in grid]

    def error(p_of, q_of):
        found = (polyval(p_of[::-1], x) / polyval(q_of[::-1], x) / v - 1 for x, v in zip(grid, values, strict=True))
        return max(map(abs, found))

    rounded = [[round_to(c / fitted[-1], digits) for c in side] for side in (p_of, q_of)]
    return *rounded, error(p_of, q_of), error(*rounded)


def round_to(c, digits):
    mantissa, exponent = frexp(c)
    return ldexp(nint(ldexp(mantissa, digits)), exponent - digits)


def alternating(error, count):
    """The indices of `count` extreme errors of alternating signs, the smallest neighbours left out."""
    peaks = []
    for i, e in enumerate(error):
        if peaks and (error[peaks[-1]] > 0) == (e > 0):
            if abs(e) > abs(error[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > count:
        if len(peaks) == count + 1:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        else:
            pairs = range(len(peaks) - 1)
            least = min(pairs, key=lambda k: max(abs(error[peaks[k]]), abs(error[peaks[k + 1]])))
            del peaks[least : least + 2]
    return peaks


def fit(f, powers, low, high, weight, digits):
    """(rounded coefficients, exact error, rounded error)"""
    low, high, powers = mpf(low), mpf(high), list(powers)
    done, first = [], None
    for i in range(len(powers)):

        def left(x, done=tuple(done)):
            return f(x) - sum(c * x**k for k, c in done)

        fitted, error = remez(left, powers[i:], low, high, weight)
        first = first or error
        # from the sixth on, rounding is far below the error of the fit
        for k, c in zip(powers[i:], fitted[:1] if i < 5 else fitted, strict=False):
            done.append((k, round_to(c, digits)))
        if len(done) == len(powers):
            break
    grid = [x for x in (low + (high - low) * i / 2000 for i in range(2001)) if abs(x) > 1e-6]
    last = max(abs(weight(x) * (f(x) - sum(c * x**k for k, c in done))) for x in grid)
    return [c for _, c in done], first, last


LN2 = log(2)


def atanh_rest(z):
    s = sqrt(z)
    return (2 * atanh(s) - 2 * s) / (s * z)


def erf_ratio(z):
    return erf(sqrt(z)) / sqrt(z) if z else 2 / sqrt(pi)


def tail_ratio(a):
    return exp(a * a / 2) * erfc(a / sqrt(2)) / 2


def sine_rest(z):
    return sin(pi / 2 * sqrt(z)) / sqrt(z) - pi / 2


def cosine_rest(z):
    return cos(pi / 2 * sqrt(z)) - 1


def odd(f):
    """(f(x) / x - 1) / z with z = x**2."""
    return lambda z: (f(sqrt(z)) / sqrt(z) - 1) / z


def odd_weight(f):
    """What makes an error of `odd` relative to f."""
    return lambda z: z * sqrt(z) / f(sqrt(z))


def cosine(z):
    return (cos(sqrt(z)) - 1 + z / 2) / z**2


def tanh_shrink(z):
    """(x - tanh x) / x**3 with z = x**2."""
    return (sqrt(z) - tanh(sqrt(z))) / (z * sqrt(z))


def hyperbolic_cosine(z):
    return (cosh(sqrt(z)) - 1 - z / 2) / z**2


def scaled_tail(k):
    """e**(a**2) erfc(a) (1 + a) in s = (a - k) / (a + k).

    k was chosen among the multiples of 1/1024 from 1.8 to 2.5 (2.9 to 4): those of which the coefficients of 1 and of
    s are within a fiftieth of a unit of a float, then the best fit.
    """

    def function(s):
        a = k * (1 + s) / (1 - s)
        return exp(a * a) * erfc(a) * (1 + a)

    return function


def scaled_tail_table(k, degree, largest, digits):
    f, high = scaled_tail(mpf(k)), (mpf(largest) - k) / (largest + k)
    return f, range(degree + 1), -1, high, lambda s: 1 / f(s), digits


SLOPES = 0.79**2  # a little more than pi / 4: quotients are rounded before they are rounded to integers


# name -> f, powers, interval, weight, digits
TABLES = {
    "exp 32": (lambda r: exp(r) - 1 - r, range(2, 7), -LN2 / 2, LN2 / 2, lambda r: exp(-r), 24),
    "exp 64": (lambda r: exp(r) - 1 - r, range(2, 12), -LN2 / 2, LN2 / 2, lambda r: exp(-r), 53),
    "expm1 32": (lambda r: expm1(r) - r, range(2, 8), log(0.75), log(1.5), lambda r: 1 / expm1(r), 24),
    "expm1 64": (lambda r: expm1(r) - r, range(2, 13), log(0.75), log(1.5), lambda r: 1 / expm1(r), 53),
    "tanh 32": (
        lambda r: expm1(2 * r) / 2 - r,
        range(2, 8),
        -LN2 / 4,
        LN2 / 4,
        lambda r: 2 / expm1(2 * r),
        24,
    ),
    "tanh 64": (
        lambda r: expm1(2 * r) / 2 - r,
        range(2, 13),
        -LN2 / 4,
        LN2 / 4,
        lambda r: 2 / expm1(2 * r),
        53,
    ),
    "log 32": (lambda f: log1p(f) - f + f * f / 2, range(3, 11), -0.25, 0.5, lambda f: 1 / log1p(f), 24),
    "log 64": (atanh_rest, range(8), 1e-20, 0.04, lambda z: sqrt(z) * z / (2 * atanh(sqrt(z))), 53),
    "erf near 32": (lambda z: erf_ratio(z) - 1, range(6), 0, 0.85**2, lambda z: 1 / erf_ratio(z), 24),
    "erf near 64": (lambda z: erf_ratio(z) - 1, range(12), 0, 1, lambda z: 1 / erf_ratio(z), 53),
    "erf far 32": (lambda x: log(erfc(x), 2), range(7), 0.85, 4, lambda x: erfc(x) * LN2 / erf(x), 24),
    "erf far 64": (
        lambda t: log(erfc(t + 1), 2),
        range(19),
        0,
        5,
        lambda t: erfc(t + 1) * LN2 / erf(t + 1),
        53,
    ),
    # of quarters of a turn: (sin(y pi / 2) / y - pi / 2) / z and (cos(y pi / 2) - 1) / z with z = y**2
    "sin quarter 32": (sine_rest, range(1, 4), 1e-20, 0.25, lambda z: 1 / (sine_rest(z) + pi / 2), 24),
    "sin quarter 64": (sine_rest, range(1, 7), 1e-20, 0.25, lambda z: 1 / (sine_rest(z) + pi / 2), 53),
    "cos quarter 32": (cosine_rest, range(1, 5), 1e-20, 0.25, lambda z: 1 / (cosine_rest(z) + 1), 24),
    "cos quarter 64": (cosine_rest, range(1, 8), 1e-20, 0.25, lambda z: 1 / (cosine_rest(z) + 1), 53),
    "sin 32": (odd(sin), range(3), 1e-20, SLOPES, odd_weight(sin), 24),
    "sin 64": (odd(sin), range(6), 1e-20, SLOPES, odd_weight(sin), 53),
    "cos 32": (cosine, range(3), 1e-20, SLOPES, lambda z: z**2 / cos(sqrt(z)), 24),
    "cos 64": (cosine, range(6), 1e-20, SLOPES, lambda z: z**2 / cos(sqrt(z)), 53),
    "atan 32": (odd(atan), range(9), 1e-20, 1, odd_weight(atan), 24),
    "atan 64": (odd(atan), range(20), 1e-20, 1, odd_weight(atan), 53),
    "asin 32": (odd(asin), range(5), 1e-20, 0.25, odd_weight(asin), 24),
    "asin 64": (odd(asin), range(13), 1e-20, 0.25, odd_weight(asin), 53),
    "sinh 32": (odd(sinh), range(3), 1e-20, LN2**2 / 4, odd_weight(sinh), 24),
    "sinh 64": (odd(sinh), range(5), 1e-20, LN2**2 / 4, odd_weight(sinh), 53),
    "cosh 32": (hyperbolic_cosine, range(2), 1e-20, LN2**2 / 4, lambda z: z**2 / cosh(sqrt(z)), 24),
    "cosh 64": (hyperbolic_cosine, range(5), 1e-20, LN2**2 / 4, lambda z: z**2 / cosh(sqrt(z)), 53),
    "atanh 32": (odd(atanh), range(4), 1e-20, 1 / 9, odd_weight(atanh), 24),
    "atanh 64": (odd(atanh), range(10), 1e-20, 1 / 9, odd_weight(atanh), 53),
    "erfc 32": scaled_tail_table(2.18359375, 10, 10.1, 24),
    "erfc 64": scaled_tail_table(3.0458984375, 22, 27.3, 53),
    "tanh_shrink 32": (tanh_shrink, range(11), 1e-20, 2.25, lambda z: 1 / tanh_shrink(z), 24),
    "tanh_shrink 64": (tanh_shrink, range(22), 1e-20, 2.25, lambda z: 1 / tanh_shrink(z), 53),
    "exp2 32": (lambda r: mpf(2) ** r - 1, range(1, 6), -0.5, 0.5, lambda r: mpf(2) ** -r, 24),
    "exp2 64": (lambda r: mpf(2) ** r - 1, range(1, 12), -0.5, 0.5, lambda r: mpf(2) ** -r, 53),
}
# name -> f, degree of P, interval, digits
QUOTIENTS = {
    "tail 32": (tail_ratio, 4, 13.3, 24),
    "tail 64": (tail_ratio, 10, 38, 53),
}


def main(names):
    for name in names or [*TABLES, *QUOTIENTS]:
        found = fit(*TABLES[name]) if name in TABLES else quotient(*QUOTIENTS[name])
        *tables, exact, rounded = found
        print(f"{name}: 2**{float(log(exact, 2)):.1f}, rounded 2**{float(log(rounded, 2)):.1f}")
        for coefficients in tables:
            print("    " + ", ".join(repr(float(c)) for c in coefficients), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
