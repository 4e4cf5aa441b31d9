"""Maxima of windows that overlap, over planes whose rows are a few vectors: no element is asked whether it is there.

A window that reaches out of the plane gives the same as one whose rows and columns there are those at the edge, so rows
are clamped, columns are lanes of shuffles, and the last vector of a row, or the last rows of a band, begin early.  Rows
of results that are computed together share the rows that they read.  Elements are taken to be no NaN, which halves the
instructions of a maximum; their sum tells, and a band that had some is computed once more.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import advance
from numbaprims.cpu.simd.arithmetic import greatest_value
from numbaprims.cpu.simd.convert import load_wide_value, store_narrow_value
from numbaprims.cpu.simd.emit import any_lane, constant, first_lanes_value, llvm_vector, number, prefetch_lines
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.loops import keep_rolled_value, once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.windows.arguments import ARGS
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.value import at_most, select

#: Vectors of a row of x, and rows or columns of a window, at most: they are written out.
MOST = 8
#: Vectors of a plane of results that are.
WRITTEN = 16


class Form(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    W: int
    width: int
    outs: int
    """Columns of the result."""
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    rows: tuple[int, int] = (0, 0)
    """Of x and of the result, where all of a plane is written out."""
    ahead: int = 0
    """Bytes ahead of the rows that are read that are asked for."""

    @property
    def text(self) -> str:
        pairs = (f"{a}x{b}" for a, b in self[4:-1])
        return "/".join(map(str, (*self[:4], *pairs, self.ahead)))

    @classmethod
    def parse(cls, text: str) -> Form:
        """The form of a text."""
        dtype, W, width, outs, *pairs, ahead = text.split("/")
        kernel, stride, before, rows = ((int(a), int(b)) for a, b in (pair.split("x") for pair in pairs))
        return cls(dtype, int(W), int(width), int(outs), kernel, stride, before, rows, int(ahead))

    def cycles(self, rows: int) -> float:
        """Of so many rows of a plane's results: maxima down each vector of x, a shuffle and a maximum for each tap."""
        results = len(starts(self.outs, self.W)) / pack_of(self)
        return 10.0 + 0.55 * rows * (self.kernel[0] * len(starts(self.width, self.W)) + 2 * self.kernel[1] * results)


def starts(length: int, W: int) -> list[int]:
    """First columns of the vectors of a row: the last one begins early."""
    return [*range(0, length - W, W), max(0, length - W)]


def pack_of(form: Form) -> int:
    """Rows of results in a vector."""
    return 2 if form.width <= form.W and 2 * form.outs <= form.W else 1


class _Planes:
    """Emits rows of a plane's results."""

    def __init__(self, builder: Any, form: Form, x: Any, out: Any, height: Any) -> None:
        self.b, self.form, self.x, self.out = builder, form, x, out
        self.ends = Value(builder, height) - 1
        self.vector = llvm_vector(DTYPES[form.dtype].accumulate, form.W)
        self.sources, self.results = starts(form.width, form.W), starts(form.outs, form.W)
        self.pack = pack_of(form)
        wide = target.current().isa in ("avx512", "neon")
        self.together = max(self.pack, 4 if wide and form.stride[0] == 1 else 2)

    def _mask(self, lanes: int) -> Any:
        return first_lanes_value(self.b, number(lanes), self.form.W)

    def load(self, row: Value, column: int) -> Value:
        f = self.form
        mask = self._mask(f.width) if f.width < f.W else None
        return Value(self.b, load_wide_value(self.b, self.x, (row * f.width + column).value, f.dtype, f.W, mask))

    def join(self, vectors: list[Value], ordered: bool) -> Value:
        return functools.reduce(lambda a, b: a.new(greatest_value(self.b, a.value, b.value, ordered)), vectors)

    def ask(self, r: Value, R: int) -> None:
        """For what is read `ahead` bytes behind the rows of x of R rows of results.

        The core followed none of rows of 448 bytes: 16 x 64 x 112 x 112 by 3 x 3, 2 took 2.3 ms, 1.5 so (Zen 5).
        """
        f, row = self.form, self.form.stride[0] * self.form.width
        first = r * row + f.ahead // DTYPES[f.dtype].itemsize
        prefetch_lines(self.b, self.x, first, llvm_vector(f.dtype, R * row), False)

    def down(self, read: dict[int, Value], R: int, ordered: bool) -> list[Value]:
        """The rows of each window, of which two neighbours share what both have."""
        (high, _), (step, _) = self.form.kernel, self.form.stride
        taps, found = [range(r * step, r * step + high) for r in range(R)], list[Value]()
        for pair in (taps[r : r + 2] for r in range(0, R, 2)):
            shared = [q for q in pair[0] if q in pair[-1]]
            if len(pair) == 1 or len(shared) < 2:
                found += [self.join([read[q] for q in each], ordered) for each in pair]
                continue
            common = self.join([read[q] for q in shared], ordered)
            found += [self.join([common, *(read[q] for q in each if q not in shared)], ordered) for each in pair]
        return found

    def pick(self, vectors: list[Value], columns: list[tuple[int, int]]) -> Value:
        """Of the first lanes (row, column) of vectors row after row; any others."""
        W, count = self.form.W, len(self.sources)
        missing, value, placed = dict(enumerate(columns)), None, list[int]()
        for u, vector in enumerate(vectors):
            begin = self.sources[u % count]
            here = {k: c - begin for k, (row, c) in missing.items() if row == u // count and 0 <= c - begin < W}
            missing = {k: place for k, place in missing.items() if k not in here}
            if here and value is None:
                value, placed = vector, [here.get(lane, lane) for lane in range(W)]
            elif here and value is not None:
                chosen = [W + here[lane] if lane in here else placed[lane] for lane in range(W)]
                value, placed = value.new(shuffle_value(self.b, value.value, vector.value, chosen)), list(range(W))
        assert value is not None and not missing
        if placed != list(range(W)):
            value = value.new(shuffle_value(self.b, value.value, value.value, placed))
        return value

    def along(self, rows: list[Value], first: int, ordered: bool) -> Value:
        """Results from column `first` on, or of some rows, of what their columns give."""
        f, count = self.form, len(rows) // len(self.sources)
        taps = []
        for t in range(f.kernel[1]):
            lanes = []
            for lane in range(min(f.W, count * f.outs)):
                row, column = divmod(lane, f.outs) if count > 1 else (0, first + lane)
                lanes.append((row, min(max(column * f.stride[1] + t - f.before[1], 0), f.width - 1)))
            taps.append(self.pick(rows, lanes))
        return self.join(taps, ordered)

    def rows(self, r: Value, R: int, ordered: bool, seen: Value) -> Value:
        """Rows r ... r + R - 1; what was seen of NaN."""
        f = self.form
        reads = range((R - 1) * f.stride[0] + f.kernel[0])
        at = {q: r * f.stride[0] + (q - f.before[0]) for q in reads}
        at = {q: at_most(select(row < 0, row.like(0), row), self.ends) for q, row in at.items()}
        found = list[list[Value]]()
        for column in self.sources:
            read = {q: self.load(at[q], column) for q in reads}
            if ordered:
                seen = seen + functools.reduce(lambda a, b: a + b, read.values())
            found.append(self.down(read, R, ordered))
        self.put(r, found, ordered, True)
        return seen

    def put(self, r: Value, found: list[list[Value]], ordered: bool, ends: bool) -> None:
        """Write rows of results, of what the rows of each vector's windows give; `ends`: what is behind the last row
        is not this worker's."""
        f, R = self.form, len(found[0])
        pack = min(self.pack, R)
        for k in range(0, R, pack):
            some = [vectors[i] for i in range(k, min(k + pack, R)) for vectors in found]
            for first in self.results:
                lanes = min(f.W, min(pack, R - k) * f.outs)
                # what is behind the end of a row the next ones replace
                mask = self._mask(lanes) if ends and k * f.outs + first + f.W > R * f.outs else None
                value = self.along(some, first, ordered)
                store_narrow_value(self.b, self.out, ((r + k) * f.outs + first).value, value.value, f.dtype, mask)

    def plane(self, ordered: bool) -> Value:
        """All rows, each of which is loaded once; what was seen of NaN."""
        f, zero = self.form, self.ends.like(0)
        (height, outs), (high, _), (step, _), (above, _) = f.rows, f.kernel, f.stride, f.before
        loaded: dict[int, list[Value]] = {}
        seen = Value(self.b, constant(self.vector, 0.0))
        for r in range(0, outs, 2):
            R = min(2, outs - r)
            reads = {q: min(max(r * step + q - above, 0), height - 1) for q in range((R - 1) * step + high)}
            for row in reads.values():
                if row not in loaded:
                    loaded[row] = [self.load(zero + row, column) for column in self.sources]
                    seen = functools.reduce(lambda a, b: a + b, loaded[row], seen) if ordered else seen
            parts = range(len(self.sources))
            found = [self.down({q: loaded[row][k] for q, row in reads.items()}, R, ordered) for k in parts]
            self.put(zero + r, found, ordered, (r + R - 1) * f.outs + f.W > outs * f.outs)
        return seen

    def band(self, lo: Value, hi: Value, ordered: bool) -> Value:
        """Rows lo ... hi - 1; what was seen of NaN."""
        if self.form.rows[0]:
            return self.plane(ordered)
        R = self.together

        def some(count: int, last: Value) -> Any:
            def emit(state: list[Any]) -> list[Any]:
                keep_rolled_value(self.b)
                r, seen = state
                if self.form.ahead:
                    self.ask(r, count)
                return [r + count, self.rows(at_most(r, last), count, ordered, seen)]

            return emit

        groups = select(hi - lo < R, lo.like(0), (hi - lo + (R - 1)) // R)
        state = repeat(self.b, groups, [lo, Value(self.b, constant(self.vector, 0.0))], some(R, hi - R), "rows")
        seen: Value = repeat(self.b, hi - state[0], state, some(1, hi), "row")[1]
        return seen

    def run(self, lo: Value, hi: Value) -> None:
        seen = self.band(lo, hi, True).value
        again = any_lane(self.b, self.b.fcmp_unordered("uno", seen, seen))

        def anew(state: list[Any]) -> list[Any]:
            self.band(lo, hi, False)
            return state

        once(self.b, again, [], anew, "anew")


@intrinsic(prefer_literal=True)
def _rows(typingctx, form, x, out, height, lo, hi):  # type: ignore[no-untyped-def]
    """Rows [lo, hi) of a plane's results."""
    chosen = Form.parse(form.literal_value)

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        _, x, out, height, lo, hi = values
        _Planes(builder, chosen, x, out, height).run(Value(builder, lo), Value(builder, hi))
        return context.get_dummy_value()

    return types.void(form, x, out, types.int64, types.int64, types.int64), codegen


@functools.cache
def make_forward(form: Form) -> RangeKernel:
    """Kernel over bands of rows of the results' planes."""
    text = form.text

    @range_kernel("windows_overlaps", ARGS.types(out=form.dtype, x=form.dtype), spec=(text,))
    def windows_overlaps(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plane, band = divmod(lo, args.bands)
        n, c = divmod(plane, args.c)
        for _ in range(lo, hi):
            x, out = advance(args.x, n * args.x_n + c * args.x_c), advance(args.out, n * args.out_n + c * args.out_c)
            first = band * args.band
            _rows(text, x, out, args.size_h, first, min(first + args.band, args.outs_h))
            band += 1
            if band == args.bands:
                band, c = 0, c + 1
                if c == args.c:
                    n, c = n + 1, 0

    return windows_overlaps
