"""The matrices of minimal filtering (Toom 1963, Cook 1966, Winograd 1980), exact, and straight-line code for them.

F(m, r) computes m outputs of a filter with r taps, y[i] = sum over j of d[i + j] g[j], with n = m + r - 1
multiplications: y = A^T [(G g) * (B^T d)].  Its adjoints are the gradients: of the data, d' = B [(G g) * (A y')],
and of the filter, g' = G^T [(B^T d) * (A y')].  In two dimensions each matrix acts on the rows and on the columns
(Lavin and Gray 2016).

Both devices' kernels take the code of a transform from here: a text of additions and multiply-adds (`program`).
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import NamedTuple

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]

# Small points first, both signs together (their rows share all of their products); reciprocals keep powers small.
_SIZES = ("1", "2", "1/2", "3/2", "2/3", "3", "1/3", "4", "1/4", "3/4", "4/3")
_POINTS = tuple(sign * Fraction(size) for size in _SIZES for sign in (1, -1))


class Filtering(NamedTuple):
    """The three matrices of F(m, r), for n = m + r - 1 points."""

    a_t: Matrix
    """m x n: from products to outputs."""
    g: Matrix
    """n x r: of the filter."""
    b_t: Matrix
    """n x n: of the data."""


def default_points(n: int) -> Row:
    """The n - 1 finite points that `filtering` takes; the last one is infinity.

    >>> [str(point) for point in default_points(6)]
    ['0', '1', '-1', '2', '-2']
    """
    if not 1 <= n <= len(_POINTS) + 2:
        raise ValueError(f"n={n}; there are points for 1 to {len(_POINTS) + 2}")
    return (Fraction(0), *_POINTS)[: n - 1]


@functools.cache  # 5 ms for the larger ones, which solvers ask for at every first call
def filtering(m: int, r: int, points: Row | None = None) -> Filtering:
    """The matrices of F(m, r).

    Args:
        m: outputs, from 1.
        r: taps, from 1.
        points: m + r - 2 different finite points; infinity is added.  `default_points` where None.

    Raises:
        ValueError: m or r below 1, too few points known, or not as many different ones as there must be.

    Example:
        >>> [[str(x) for x in row] for row in filtering(2, 3).a_t]
        [['1', '1', '1', '0'], ['0', '1', '-1', '1']]
    """
    if m < 1 or r < 1:
        raise ValueError(f"m={m}, r={r}; both must be at least 1")
    n = m + r - 1
    chosen = default_points(n) if points is None else tuple(Fraction(point) for point in points)
    if len(chosen) != n - 1 or len(set(chosen)) != n - 1:
        raise ValueError(f"F({m}, {r}) takes {n - 1} different points, not {len(chosen)}: {chosen}")
    a_rows, g_rows, b_rows = [], [], []
    for i, point in enumerate(chosen):
        others = chosen[:i] + chosen[i + 1 :]
        norm = Fraction(1)
        for other in others:
            norm *= point - other
        a_rows.append(_powers(point, m))
        g_rows.append(tuple(x / norm for x in _powers(point, r)))
        b_rows.append((*_from_roots(others), Fraction(0)))
    a_rows.append(_unit(m - 1, m))
    g_rows.append(_unit(r - 1, r))
    b_rows.append(_from_roots(chosen))
    return Filtering(transposed(tuple(a_rows)), tuple(g_rows), tuple(b_rows))


def transposed(matrix: Matrix) -> Matrix:
    """Rows become columns."""
    return tuple(zip(*matrix, strict=True))


def _powers(x: Fraction, count: int) -> Row:
    return tuple(x**k for k in range(count))


def _unit(at: int, size: int) -> Row:
    return tuple(Fraction(int(k == at)) for k in range(size))


def _from_roots(roots: Row) -> Row:
    """Coefficients, the constant first, of the product of (x - root)."""
    found: Row = (Fraction(1),)
    for root in roots:
        shifted, scaled = (Fraction(0), *found), (*(root * x for x in found), Fraction(0))
        found = tuple(a - b for a, b in zip(shifted, scaled, strict=True))
    return found


class Writer:
    """Instructions of one program; a value is a number: the inputs first, then the result of each instruction."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.lines: list[str] = []
        self._known: dict[str, int] = {}

    def emit(self, line: str) -> int:
        """The value of an instruction, which stands once in the program however often it is asked for."""
        if line not in self._known:
            self._known[line] = self.inputs + len(self.lines)
            self.lines.append(line)
        return self._known[line]

    def combine(self, terms: list[tuple[int, Fraction]]) -> tuple[int, Fraction]:
        """(v, f) such that f * v is the sum of coefficient * value: the coefficients are divided by the first one."""
        terms = [(value, factor) for value, factor in terms if factor]
        if not terms:
            return self.emit("zero"), Fraction(1)
        # first what leaves the most terms without a multiplication
        terms.sort(key=lambda term: (-sum(abs(term[1]) == abs(x) for _, x in terms), abs(term[1]) != 1, term[1] < 0))
        value, factor = terms[0]
        for other, weight in terms[1:]:
            value = self.add(value, other, weight / factor)
        return value, factor

    def add(self, value: int, other: int, factor: Fraction) -> int:
        """value + factor * other."""
        if factor == 1:
            return self.emit(f"add {value} {other}")
        if factor == -1:
            return self.emit(f"sub {value} {other}")
        return self.emit(f"fma {other} {factor} {value}")

    def plain(self, scaled: tuple[int, Fraction]) -> int:
        """The value of (v, s) itself."""
        value, factor = scaled
        if factor == 1:
            return value
        return self.emit(f"neg {value}" if factor == -1 else f"mul {value} {factor}")


@functools.cache
def program(matrix: Matrix) -> str:
    """Straight-line code for matrix times vector, of additions and multiply-adds with shared subexpressions.

    Instructions are separated by ";": ``zero``, ``add a b``, ``sub a b``, ``neg a``, ``mul a f`` (f a) and
    ``fma a f b`` (f a + b), f a fraction; each makes one more value after the inputs.  ``out ...`` ends the program.
    Columns that differ in signs only are added and subtracted first (the points x and -x of A^T); rows that differ in
    the signs of some columns only (x and -x of B^T and G) are the sum and the difference of two shared ones.

    >>> program(filtering(2, 3).a_t)
    'add 1 2;sub 1 2;add 0 4;add 3 5;out 6 7'
    """
    columns = len(matrix[0])
    writer = Writer(columns)
    rows: list[dict[int, Fraction]] = [dict(enumerate(row)) for row in matrix]
    for left in range(columns):
        for right in range(left + 1, columns):
            if any(left not in row or right not in row for row in rows):
                continue
            same = [row for row in rows if row[left] == row[right]]
            if len(same) in (0, len(rows)) or any(row[left] != -row[right] for row in rows if row not in same):
                continue
            _pair_columns(writer, rows, left, right)
    outputs: list[int | None] = [None] * len(rows)
    for i, row in enumerate(rows):
        if outputs[i] is not None:
            continue
        for j in range(i + 1, len(rows)):
            if outputs[j] is None and _mirrored(row, rows[j]):
                outputs[i], outputs[j] = _pair_rows(writer, row, rows[j])
                break
        else:
            outputs[i] = writer.plain(writer.combine(list(row.items())))
    return ";".join([*writer.lines, "out " + " ".join(map(str, outputs))])


def _pair_columns(writer: Writer, rows: list[dict[int, Fraction]], left: int, right: int) -> None:
    """Replace columns a, b by a + b where both factors are equal, a - b where they are opposite."""
    plus = minus = None
    for row in rows:
        a, b = row.pop(left), row.pop(right)
        if a == b != 0:
            plus = writer.emit(f"add {left} {right}") if plus is None else plus
            row[plus] = a
        elif a == -b != 0:
            minus = writer.emit(f"sub {left} {right}") if minus is None else minus
            row[minus] = a


def _mirrored(a: dict[int, Fraction], b: dict[int, Fraction]) -> bool:
    """Whether two rows have equal factors in some columns and opposite ones in the others, two or more in all."""
    keys = {key for key in (*a, *b) if a.get(key) or b.get(key)}
    equal = [key for key in keys if a.get(key) == b.get(key)]
    opposite = [key for key in keys if a.get(key, 0) == -b.get(key, Fraction(0))]
    return len(equal) + len(opposite) == len(keys) and bool(equal) and bool(opposite)


def _pair_rows(writer: Writer, a: dict[int, Fraction], b: dict[int, Fraction]) -> tuple[int, int]:
    """The values of two mirrored rows: the sum and the difference of what they share and what they do not."""
    even, factor = writer.combine([(key, x) for key, x in a.items() if x and x == b.get(key)])
    odd, other = writer.combine([(key, x) for key, x in a.items() if x and x == -b.get(key, Fraction(0))])
    even = writer.plain((even, factor))
    return writer.add(even, odd, other), writer.add(even, odd, -other)


def run(code: str, inputs: tuple[Fraction, ...]) -> Row:
    """What a program computes, exactly.

    >>> [str(x) for x in run("add 0 1;fma 0 -1/2 2;out 2 3", (Fraction(1), Fraction(3)))]
    ['4', '7/2']
    """
    values = list(inputs)
    for line in code.split(";"):
        name, *words = line.split()
        if name == "out":
            return tuple(values[int(word)] for word in words)
        if name == "zero":
            values.append(Fraction(0))
            continue
        a = values[int(words[0])]
        if name in ("add", "sub"):
            b = values[int(words[1])]
            values.append(a + b if name == "add" else a - b)
        elif name == "neg":
            values.append(-a)
        else:
            product = a * Fraction(words[1])
            values.append(product if name == "mul" else product + values[int(words[2])])
    raise ValueError(f"a program ends with 'out': {code!r}")
