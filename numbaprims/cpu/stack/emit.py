"""Rows of a stage: what the rows of windows give together, then along the row, in registers.

A row is a line of vectors: parts of it in planes (planes.py), channels of one place otherwise (channels.py).  What a
vector's rows give together is computed once and carried along the row as long as windows reach it.  Some rows of
results are computed together: they share the rows that they both read, and what a row takes beside its vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from numbaprims.cpu import target
from numbaprims.cpu.activation.formulas import FORWARD, leaky_relu
from numbaprims.cpu.simd.arithmetic import greatest_value
from numbaprims.cpu.simd.emit import (
    I64,
    any_lane,
    argument,
    constant,
    element_at,
    first_lanes_value,
    llvm_vector,
    number,
    splat_value,
)
from numbaprims.cpu.simd.loops import keep_rolled_value, once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import llvm_element
from numbaprims.cpu.stack.arguments import BLOCK_WORDS, STAGE
from numbaprims.cpu.stack.stages import Stage
from numbaprims.formulas.value import at_most, mad, select

#: Vectors that are carried along rows, at most: about half of the registers.
MOST_CARRIED = 16
#: Elements of a depthwise window whose weights are written out.
MOST_WEIGHTS = 49


#: Element-wise operations that are no activation.
_ARITHMETIC: dict[str, Any] = {
    "batch_norm": lambda x, mean, factor, shift: mad(x - mean, factor, shift),
    "affine": mad,
    "bias": lambda x, shift: x + shift,
    "scale": lambda x, factor: x * factor,
    "prelu": leaky_relu,
}


def apply(kind: str, x: Value, numbers: Sequence[Value], added: Value | None) -> Value:
    """An element-wise operation."""
    if kind == "add":
        assert added is not None
        return x + added
    formula: Any = _ARITHMETIC.get(kind) or FORWARD[kind][0]
    found: Value = formula(x, *numbers)
    return found


class Form(NamedTuple):
    """A stage's kernel."""

    walk: str
    """"planes" or "channels"."""
    stage: str
    compute: str
    source: str
    """The type of the image's elements where the rows are its own, "" for those of a buffer."""
    result: str
    """The same of the results."""
    added: str
    """The type of what is added."""
    W: int
    partial: bool
    """Of planes whether a row is one vector at most, of channels whether the last block of channels is none."""
    pad: float
    """What stands for elements outside of the next stage's image."""
    far: bool = False
    """Whether pixels lie beyond the second-level cache, or planes beyond most of the third."""

    @property
    def text(self) -> str:
        return "|".join(map(str, (*self[:7], int(self.partial), self.pad, int(self.far))))

    @classmethod
    def parse(cls, text: str) -> Form:
        """The form of a text."""
        walk, stage, compute, source, result, added, W, partial, pad, far = text.split("|")
        return cls(walk, stage, compute, source, result, added, int(W), partial == "1", float(pad), far == "1")


class Rows:
    """Emits rows of a stage's results."""

    #: Positions of a row that a vector stands for.
    span: int
    #: Of a row, positions of what vector j of the results reads: `first` ... `last` from j S on, counted in vectors.
    first: int
    last: int
    numbers: list[Value]
    #: Whether taps are walked in loops.
    is_large = False

    def __init__(self, builder: Any, form: Form, args: Any) -> None:
        self.b, self.form, self.args = builder, form, args
        self.stage = Stage.parse(form.stage)
        self.W = form.W
        self.vector = llvm_vector(form.compute, form.W)
        self.empty = Value(builder, constant(self.vector, self.stage.empty))
        self.source = form.source or form.compute
        self.result = form.result or form.compute
        self.width, self.out_width = self.word("width"), self.word("out_width")
        window = self.stage.window
        self.takes_maxima = window is not None and window.op == "max"
        self.weighs = window is not None and window.op == "depthwise"
        #: Whether the next stage takes maxima of these results, and has to know of NaN.
        self.watches = not form.result and form.pad != 0.0
        self.ordered = False
        #: Whether maxima of the image are taken as if it had no NaN, and what was read is watched; what was last read.
        self.doubts, self.given = False, list[Value]()
        self.K, self.S, self.D, self.P = (
            (window.kernel[1], window.stride[1], window.dilation[1], window.before[1]) if window else (1, 1, 1, 0)
        )

    def word(self, name: str) -> Value:
        return Value(self.b, argument(self.b, self.args, STAGE.slot(name)))

    def pointer(self, name: str, elem: str) -> Any:
        return argument(self.b, self.args, STAGE.slot(name), llvm_element(elem).as_pointer())

    def at(self, address: Value, elem: str) -> Any:
        return self.b.inttoptr(address.value, llvm_element(elem).as_pointer())

    # ---------------------------------------------------------------- what a walk says

    def load(self, pointer: Any, v: Value, whole: bool) -> Value:
        """Vector v of a row; `whole`: all of it can be read."""
        raise ValueError("a walk says how")

    def load_added(self, row: Any, j: Value, name: str, whole: bool) -> Value:
        """Vector j of a row that is added."""
        raise ValueError("a walk says how")

    def store(self, pointer: Any, j: Value, value: Value, whole: bool) -> None:
        """Write vector j of a row of results."""
        raise ValueError("a walk says how")

    def ask(self, rows: dict[int, Any], outs: Sequence[Any], j: Value) -> None:
        """Prefetch what the next tile reads and writes where this one computes vector j of some rows."""

    def tap(self, vectors: Sequence[Value], t: int) -> Value:
        """Of vectors `first` ... `last`, the element in column t of each window."""
        raise ValueError("a walk says how")

    def share_of_column(self, shares: Any, at: Value) -> Value:
        """An element's share of the averages of vector j, of shares that begin at `at`."""
        raise ValueError("a walk says how")

    # ---------------------------------------------------------------- the rows that windows read

    def row(self, r: Value) -> Any:
        """A row of the input: of this band, of an earlier one, or of what stands for rows outside."""
        near = self.word("x") + (r - self.word("fresh")) * self.word("pitch")
        if not self.form.source:
            far = self.word("past") + (r - self.word("oldest")) * self.word("past_pitch")
            near = select(r < self.word("fresh"), far, near)
        if self.stage.window is not None:
            inside = r.new(self.b.icmp_unsigned("<", r.value, self.word("height").value))
            near = select(inside, near, self.word("outside"))
        return self.at(near, self.source)

    def join(self, vectors: Sequence[Value]) -> Value:
        def both(a: Value, b: Value) -> Value:
            return a.new(greatest_value(self.b, a.value, b.value, self.ordered)) if self.takes_maxima else a + b

        return functools.reduce(both, vectors)

    def along(self, vectors: Sequence[Sequence[Value]], R: int) -> list[Value]:
        """What the windows of R rows give, of what `down` gives for vectors `first` ... `last`."""
        window = self.stage.window
        if window is None:
            return list(vectors[0])
        lines = zip(*vectors, strict=True)
        if not self.weighs:
            return [self.join([self.tap(line, t) for t in range(self.K)]) for line in lines]
        # a column of elements in registers, a weight for all rows of results; two sums of each hide the latency
        found: list[dict[int, Value]] = [{} for _ in range(R)]
        columns = dict(zip(self.reads(R), lines, strict=True))
        for t in range(self.K):
            column = {q: self.tap(line, t) for q, line in columns.items()}
            for k in range(window.kernel[0]):
                weight, part = self.numbers[k * self.K + t], k % 2 * (window.numbers > 9)
                for r, parts in enumerate(found):
                    x = column[r * window.stride[0] + k * window.dilation[0]]
                    parts[part] = mad(x, weight, parts[part]) if part in parts else x * weight
        return [functools.reduce(lambda a, b: a + b, parts.values()) for parts in found]

    def down(self, rows: dict[int, Any], R: int, v: Value, whole: bool) -> list[Value]:
        """Vector v of what the rows of each result's windows give together; with weights, of each row."""
        read = {q: self.load(pointer, v, whole) for q, pointer in rows.items()}
        window, self.given = self.stage.window, list(read.values())
        if self.weighs:
            return list(read.values())
        if window is None:
            return [read[r] for r in range(R)]
        S, D, K = window.stride[0], window.dilation[0], window.kernel[0]
        taps = [[r * S + k * D for k in range(K)] for r in range(R)]
        if not self.takes_maxima:
            return [self.join([read[q] for q in each]) for each in taps]
        found = []
        for pair in (taps[r : r + 2] for r in range(0, R, 2)):
            # what the windows of two rows have in common is computed once; a maximum may be taken in any order
            shared = [q for q in pair[0] if q in pair[-1]]
            if len(pair) == 1 or len(shared) < 2:
                found += [self.join([read[q] for q in each]) for each in pair]
                continue
            common = self.join([read[q] for q in shared])
            found += [self.join([common, *(read[q] for q in each if q not in shared)]) for each in pair]
        return found

    def vectors(self, rows: dict[int, Any], R: int, v: Value, seen: list[Any]) -> tuple[list[Value], list[Any]]:
        """The same where the row may end before or within the vector; and what was seen of NaN."""
        inside = self.b.icmp_unsigned("<", (v * self.span).value, self.width.value)
        lines, whole = self.lines(R), self.span == 1 or not self.form.source

        def read(state: list[Any]) -> list[Any]:
            return [*self.down(rows, R, v, whole), *self.doubt(state[lines:])]

        found = once(self.b, inside, [*[self.empty] * lines, *seen], read, "inside")
        return found[:lines], found[lines:]

    # ---------------------------------------------------------------- what is done to results

    def finish(self, value: Value, r: Value, j: Value, whole: bool) -> Value:
        """The operations behind the window."""
        b, window = self.b, self.stage.window
        if window is not None and window.op == "avg":
            shares = self.pointer("shares", self.form.compute)
            of_row = Value(b, splat_value(b, b.load(element_at(b, shares, r)), self.W))
            value = value * (self.share_of_column(shares, self.word("out_height") + j * self.span) * of_row)
        numbers, added = iter(self.numbers[window.numbers if window else 0 :]), iter(("added", "added_next"))
        for each in self.stage.after:
            more = None
            if each.kind == "add":
                name = next(added)
                row = self.at(self.word(name) + r * self.word(f"{name}_pitch"), self.form.added)
                more = self.load_added(row, j, name, whole)
            value = apply(each.kind, value, [next(numbers) for _ in range(each.numbers)], more)
        return value

    # ---------------------------------------------------------------- NaN

    def watch(self, seen: Any, values: Sequence[Value]) -> Any:
        """What was seen of NaN, and in these vectors: a comparison tells of two."""
        for k in range(0, len(values), 2):
            found = self.b.fcmp_unordered("uno", values[k].value, values[min(k + 1, len(values) - 1)].value)
            seen = self.b.or_(seen, found if seen.type == found.type else self.b.sext(found, seen.type))
        return seen

    def doubt(self, seen: list[Any]) -> list[Any]:
        """The same, and in what was last read."""
        return [*seen[:-1], self.watch(seen[-1], self.given)] if self.doubts else seen

    def nothing_seen(self) -> list[Any]:
        """Of results and of what is read, as masks are kept in registers: of AVX-512 they have their own."""
        mask = first_lanes_value(self.b, number(0), self.W)
        own = mask if target.current().isa == "avx512" else self.b.sext(mask, self.empty.integers)
        return [own] * (self.watches + self.doubts)

    def any_seen(self, seen: Any) -> Any:
        """Whether it is so in any lane."""
        b = self.b
        return any_lane(b, seen if seen.type.element.width == 1 else b.icmp_signed("!=", seen, constant(seen.type, 0)))

    def tell(self, seen: Any) -> None:
        """The next stage, whose block lies behind this one."""
        b = self.b
        word = b.gep(b.inttoptr(self.args, I64.as_pointer()), [number(BLOCK_WORDS + STAGE.slot("unordered"))])
        b.store(b.or_(b.load(word), b.zext(self.any_seen(seen), I64)), word)

    # ---------------------------------------------------------------- rows

    def rows(self, r: Value, R: int, begin: Value, seen: list[Any]) -> list[Any]:
        """Rows r ... r + R - 1 of the results, of which `begin` is the first of this band."""
        b, W, window = self.b, self.span, self.stage.window
        S, P = (window.stride[0], window.before[0]) if window else (1, 0)
        rows = {q: self.row(r * S + (q - P)) for q in self.reads(R)}
        outs = [
            self.at(self.word("out") + (r + k - begin) * self.word("out_pitch"), self.result) for k in range(R)
        ]  # fmt: skip

        def put(j: Value, vectors: Sequence[Sequence[Value]], whole: bool, seen: list[Any]) -> list[Any]:
            found, values = [], self.along(vectors, R)
            for k in range(R):
                found.append(self.finish(values[k], r + k, j, whole))
                self.store(outs[k], j, found[-1], whole)
            return [self.watch(each, found) for each in seen[: self.watches]] + seen[self.watches :]

        zero = r.like(0)
        if self.span > 1 and self.form.partial:
            only = self.down(rows, R, zero, not self.form.source)
            seen = self.doubt(seen)
            vectors = [only if v == 0 else [self.empty] * len(only) for v in range(self.first, self.last + 1)]
            return put(zero, vectors, False, seen)
        ahead = self.ahead(R)  # carried: vectors first ... ahead - 1, from vector j S on
        lines = self.lines(R)
        carried = []
        for v in range(self.first, ahead):
            vector = [self.empty] * lines
            if v >= 0:
                vector, seen = self.vectors(rows, R, r.like(v), seen)
            carried.append(vector)
        places = len(carried) * lines

        def step(state: list[Any], whole: bool) -> list[Any]:
            keep_rolled_value(b)
            j, before, seen = state[0], state[1 : 1 + places], state[1 + places :]
            kept = [before[i * lines : (i + 1) * lines] for i in range(len(carried))]
            every = list(kept)
            for v in range(ahead, self.last + 1):
                if whole:
                    vector = self.down(rows, R, j * self.S + v, True)
                    seen = self.doubt(seen)
                else:
                    vector, seen = self.vectors(rows, R, j * self.S + v, seen)
                every.append(vector)
            self.ask(rows, outs, j)
            seen = put(j, every, whole, seen)
            return [j + 1, *(value for each in every[self.S :][: len(carried)] for value in each), *seen]

        # vectors of the row that can be read whole, and of the results that can be written so
        readable = self.width // W if self.form.source else (self.width + (W - 1)) // W
        count = at_most((readable - self.last + (self.S - 1)) // self.S, self.out_width // W)
        total = (self.out_width + (W - 1)) // W
        state = [zero, *(value for each in carried for value in each), *seen]
        if ahead < 0:  # of windows that share nothing, those that begin in front of the row
            in_front = at_most(zero - ahead // self.S, total)
            state = repeat(b, in_front, state, lambda state: step(state, False), "front")
        state = repeat(b, count - state[0], state, lambda state: step(state, True), "columns")
        return repeat(b, total - state[0], state, lambda state: step(state, False), "rest")[1 + places :]

    def reads(self, R: int) -> list[int]:
        """The rows that the windows of R rows of results have, from the first one's on."""
        window = self.stage.window
        if window is None:
            return list(range(R))
        return sorted(
            {r * window.stride[0] + k * window.dilation[0] for r in range(R) for k in range(window.kernel[0])}
        )

    def lines(self, R: int) -> int:
        """Of a vector, what is kept for R rows of results: of each one's windows, or the rows that they read."""
        return len(self.reads(R)) if self.weighs else R

    def ahead(self, R: int) -> int:
        """The first vector that is read anew for each vector of results: all, where registers do not hold them."""
        carried = max(self.last + 1 - self.S - self.first, 0)
        return self.first + (0 if self.weighs and carried * self.lines(R) > MOST_CARRIED else carried)

    def together(self) -> int:
        """Rows that are computed together, those of AVX2 in half as many registers."""
        carried = self.last + 1 - self.S - self.first
        if self.weighs:
            return 4 if target.current().isa in ("avx512", "neon") else 2
        return max(1, min(4 if target.current().isa in ("avx512", "neon") else 2, MOST_CARRIED // max(1, carried)))

    def band(self, lo: Value, hi: Value) -> Any:
        """Rows lo ... hi - 1; where it doubts, whether NaN was read."""

        def some(R: int, last: Value) -> Any:
            def emit(state: list[Any]) -> list[Any]:
                keep_rolled_value(self.b)
                return [state[0] + R, *self.rows(at_most(state[0], last), R, lo, state[1:])]

            return emit

        R = self.together()
        count, last = (hi - lo) // R, hi
        if self.stage.window is not None:  # never in place: the last rows begin early, where one by one is slower
            count, last = select(hi - lo < R, lo.like(0), (hi - lo + (R - 1)) // R), hi - R
        state = repeat(self.b, count, [lo, *self.nothing_seen()], some(R, last), "rows")
        seen = repeat(self.b, hi - state[0], state, some(1, hi), "row")[1:]
        if self.watches:
            self.tell(seen[0])
        return self.any_seen(seen[-1]) if self.doubts else None

    def run(self, lo: Value, hi: Value) -> None:
        """The same, maxima without a thought of NaN where none can be: with AVX-512 half as many instructions."""
        if not self.takes_maxima or (self.form.source and self.is_large):
            self.band(lo, hi)
            return
        if self.form.source:
            # an image is taken to have no NaN: rows that did are computed once more
            self.ordered = self.doubts = True
            again = self.band(lo, hi)
            self.ordered = self.doubts = False

            def anew(state: list[Any]) -> list[Any]:
                self.band(lo, hi)
                return state

            once(self.b, again, [], anew, "anew")
            return
        unordered = self.word("unordered")

        def of(ordered: bool) -> Any:
            def emit(state: list[Any]) -> list[Any]:
                self.ordered = ordered
                self.band(lo, hi)
                return state

            return emit

        once(self.b, unordered.equals(0), [], of(True), "ordered")
        once(self.b, unordered > 0, [], of(False), "unordered")
