"""Minimal filtering is exact, for every size and in its adjoint forms; programs compute their matrices."""

import random
from fractions import Fraction

import pytest

from numbaprims.cook_toom import default_points, filtering, program, run, transposed

SIZES = [(m, r) for m in range(1, 9) for r in range(1, 8)] + [(2, 12), (1, 12), (12, 2), (16, 3), (4, 11)]


def apply(matrix, vector):
    return tuple(sum((a * x for a, x in zip(row, vector, strict=True)), Fraction(0)) for row in matrix)


def times(a, b):
    return tuple(x * y for x, y in zip(a, b, strict=True))


def numbers(rng, count):
    return tuple(Fraction(rng.randint(-50, 50), rng.randint(1, 9)) for _ in range(count))


@pytest.mark.parametrize(("m", "r"), SIZES)
def test_filtering_is_exact(m, r):
    f, rng, n = filtering(m, r), random.Random(m * 100 + r), m + r - 1
    d, g, dy = numbers(rng, n), numbers(rng, r), numbers(rng, m)
    assert len(f.a_t) == m and len(f.g) == len(f.b_t) == n
    want = tuple(sum(d[i + j] * g[j] for j in range(r)) for i in range(m))
    assert apply(f.a_t, times(apply(f.g, g), apply(f.b_t, d))) == want
    # the adjoints: gradients of the data and of the filter
    of_data = apply(transposed(f.b_t), times(apply(f.g, g), apply(transposed(f.a_t), dy)))
    assert of_data == tuple(sum(dy[i] * g[p - i] for i in range(m) if 0 <= p - i < r) for p in range(n))
    of_filter = apply(transposed(f.g), times(apply(f.b_t, d), apply(transposed(f.a_t), dy)))
    assert of_filter == tuple(sum(dy[i] * d[i + j] for i in range(m)) for j in range(r))


@pytest.mark.parametrize(("m", "r"), SIZES)
def test_programs_compute_their_matrices(m, r):
    f, rng = filtering(m, r), random.Random(m + r)
    for matrix in (*f, *(transposed(part) for part in f)):
        vector = numbers(rng, len(matrix[0]))
        assert run(program(matrix), vector) == apply(matrix, vector)


def test_any_matrix_has_a_program():
    rng = random.Random(1)
    for _ in range(300):
        rows, columns = rng.randint(1, 6), rng.randint(1, 6)
        some = (0, 0, 1, -1, 2, -2, 3)
        matrix = tuple(tuple(Fraction(rng.choice(some)) for _ in range(columns)) for _ in range(rows))
        vector = numbers(rng, columns)
        assert run(program(matrix), vector) == apply(matrix, vector), matrix


def count(matrix):
    return program(matrix).count(";")


def test_subexpressions_are_shared():
    # Lavin and Gray count 32 and 156 additions for the nested data transforms of F(2x2) and F(4x4): 4 and 13 a vector
    assert count(filtering(2, 3).b_t) == 4
    assert count(filtering(4, 3).b_t) <= 12
    assert count(filtering(4, 3).a_t) <= 10
    assert count(filtering(6, 3).b_t) <= 24


def test_points():
    assert len(set(default_points(20))) == 19
    given = (Fraction(0), Fraction(1), Fraction(2))
    assert filtering(2, 3, given) != filtering(2, 3)
    with pytest.raises(ValueError, match="3 different points"):
        filtering(2, 3, (Fraction(0), Fraction(1), Fraction(1)))
    with pytest.raises(ValueError, match="at least 1"):
        filtering(0, 3)
    with pytest.raises(ValueError, match="there are points"):
        default_points(99)
    with pytest.raises(ValueError, match="ends with 'out'"):
        run("add 0 0", (Fraction(1),))
