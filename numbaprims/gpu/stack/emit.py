"""What a block does in one pass over its patch: code for every kind of pass that a kernel holds, and the switch.

A kind is where a pass reads ("stream": x, "load": x into a buffer, "buffer": the result before it), how many results a
thread computes at a time, and the text of a step; literals that Numba never looks into.  All else comes from the table
(`table.py`), a parameter by value.

Buffers hold the padding that the next window reaches into, as what changes none of its results: in a buffer no tap has
a condition.  Where a place is beyond what its buffer holds, another is read and the result is not kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from numbaprims.formulas.value import mad, select
from numbaprims.gpu.activation.formulas import FORWARD
from numbaprims.gpu.device.emit import (
    I32,
    I64,
    asm,
    element_pointer,
    int_literal,
    intrinsic,
    string_literal,
    types,
    void,
)
from numbaprims.gpu.device.math import divide_value
from numbaprims.gpu.device.memory import REGISTER, _load, _narrow, _store, _widen
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.stack import table
from numbaprims.gpu.stack.planning import Parts, is_unrolled, parts_of, rows_of
from numbaprims.stacks.operations import Pointwise, Step, Window

#: Activations that do not end in a product, which a sum behind them could be contracted with.
_ROUNDED = {"identity", "relu", "leaky_relu", "prelu", "clipped_relu", "abs", "hard_tanh", "clip", "threshold", "round"}


#: The left column of a window -> the row of a tap -> the column of a tap in the window -> the element.
Rows = Callable[[Any], Callable[[Any], Callable[[Any], Value]]]


class Kind(NamedTuple):
    """Of a pass."""

    source: str
    strip: int
    """Results of a thread's turn."""
    parts: Parts


@functools.cache
def kinds_of(key: str) -> tuple[Kind, ...]:
    """Those of a kernel."""
    found = []
    for each in key.split("|"):
        source, _, text = each.partition(":")
        found.append(Kind(source[:-1], int(source[-1]), parts_of(Step.parse(text))))
    return tuple(found)


# ---------------------------------------------------------------- operations


def _rounded(name: str, x: Value, y: Value) -> Value:
    """x + y, x - y or x * y ("add", "sub", "mul"), which no compiler makes a part of a multiply-add."""
    return x.new(asm(x.builder, f"{name}.rn.f{x.width} $0, $1, $2;", [x.value, y.value], [x.value.type])[0])


def apply(operation: Pointwise, x: Value, p: Sequence[Value], other: Callable[[], Value]) -> Value:
    """An element-wise operation with the parameters of a channel; `other` loads the element that is added."""
    kind = operation.kind
    if kind == "batch_norm":
        return mad(_rounded("sub", x, p[0]), p[1], p[2])
    if kind == "affine":
        return mad(x, p[0], p[1])
    if kind == "bias":
        return _rounded("add", x, p[0])
    if kind == "scale":
        return _rounded("mul", x, p[0])
    if kind == "add":
        return _rounded("add", x, other())
    formula, count = FORWARD[kind]
    y: Value = formula(x, *p[:count])
    return y if kind in _ROUNDED else _rounded("add", y, y.like(-0.0))


def numbers_at(context: Any, builder: Any, pointer: tuple[Any, Any], start: Any, step: Any, count: int) -> list[Value]:
    """Parameters, from an offset on."""
    found = []
    for k in range(count):
        far = builder.add(start, builder.mul(I64(k), step))
        found.append(Value(builder, builder.load(element_pointer(context, builder, *pointer, types.int64, far))))
    return found


# ---------------------------------------------------------------- control


@contextmanager
def _loop(builder: Any, start: Any, end: Any, step: Any, carried: list[Value] | None = None) -> Iterator[Any]:
    """for i in range(start, end, step), of numbers without a sign; `carried` is changed in place."""
    before, held = builder.basic_block, carried if carried is not None else []
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(start.type)
    i.add_incoming(start, before)
    phis = []
    for at, value in enumerate(held):
        phi = builder.phi(value.value.type)
        phi.add_incoming(value.value, before)
        phis.append(phi)
        held[at] = value.new(phi)
    builder.cbranch(builder.icmp_unsigned("<", i, end), body, after)
    builder.position_at_end(body)
    yield i
    following = builder.add(i, step)
    i.add_incoming(following, builder.basic_block)
    for at, phi in enumerate(phis):
        phi.add_incoming(held[at].value, builder.basic_block)
        held[at] = held[at].new(phi)
    builder.branch(head)
    builder.position_at_end(after)


def _least(builder: Any, a: Any, b: Any, sense: str = "<") -> Any:
    return builder.select(builder.icmp_signed(sense, a, b), a, b)


def _least_unsigned(builder: Any, a: Any, b: Any) -> Any:
    """The smaller; what is below 0 counts as large."""
    return builder.select(builder.icmp_unsigned("<", a, b), a, b)


class _Box(NamedTuple):
    """What a patch holds along one dimension: [low, high) of [0, size); buffers have `held` places for it."""

    low: Any
    high: Any
    held: Any
    size: Any


class _Array(NamedTuple):
    """One in memory, at this image and channel."""

    pointer: tuple[Any, Any]
    base: Any
    down: Any
    right: Any


class _Pass:
    """The code of one pass."""

    def __init__(
        self, context: Any, builder: Any, sig: Any, args: Any, dtypes: Sequence[str], group: int, threads: int
    ) -> None:
        self.context, self.builder, self.group, self.threads = context, builder, group, threads
        self.source, self.result, self.added = dtypes
        self.pointers = [(t, builder.extract_value(args[4], k)) for k, t in enumerate(sig.args[4])]
        """Of out, x, the parameters, four arrays that are added."""
        self.shared = (sig.args[6], args[6])
        self.at, self.row, self.column, self.image, first, self.thread = args[7:]
        self.table = asm(builder, "cvta.to.param.u64 $0, $1;", [args[5]], [I64])[0]
        self.floats = context.get_value_type(REGISTER[dtypes[0]])
        kind = self.field(self.at, table.KIND)
        self.kind = builder.and_(kind, I32(0xFFFF))
        self.padding = builder.select(
            builder.icmp_unsigned(">", kind, I32(0xFFFF)), self.floats(0.0), self.floats(float("-inf"))
        )
        self.last = builder.icmp_signed("==", builder.add(self.at, I32(1)), self.header(table.PASSES))
        self.high, self.wide = self.boxes(self.at)
        self.lane = I32(0)
        if group > 1:
            self.lane = builder.and_(self.thread, I32(group - 1))
        channel, most = builder.add(first, self.lane), builder.sub(self.header(table.CHANNELS), I32(1))
        self.inside = builder.icmp_unsigned("<=", channel, most)
        self.channel = _least_unsigned(builder, channel, most)

    # -------------------------------------------------------- the table
    def word(self, place: Any, offset: int, kind: Any = I32) -> Any:
        """What stands in the table `offset` bytes behind a place of it."""
        return asm(self.builder, f"ld.param.b{kind.width} $0, [$1+{offset}];", [place], [kind])[0]

    def header(self, name: int) -> Any:
        return self.word(self.table, 4 * name)

    def field(self, at: Any, name: int) -> Any:
        b = self.builder
        return self.word(b.add(self.table, b.zext(b.mul(at, I32(table.ENTRY)), I64)), table.ENTRIES + 4 * name)

    def strides(self, array: Any) -> list[Any]:
        """Of x (0), out (1), the parameters (2) or what is added (3 on)."""
        b = self.builder
        place = b.add(self.table, b.zext(b.mul(array, I32(32)), I64))
        return [self.word(place, table.STRIDES + 8 * d, I64) for d in range(4)]

    def boxes(self, at: Any) -> tuple[_Box, _Box]:
        """What this patch holds of the result of pass `at`."""
        b, found = self.builder, []
        for first, patch in ((table.HEIGHT, self.row), (table.WIDTH, self.column)):
            step, before, length, lowest, top, size = (self.field(at, first + k) for k in range(6))
            start = b.sub(b.mul(patch, step), before)
            low, high = _least(b, start, lowest, ">"), _least(b, b.add(start, length), top)
            found.append(_Box(low, high, _least(b, length, b.sub(top, lowest)), size))
        return found[0], found[1]

    # -------------------------------------------------------- memory
    def array(self, pointer: tuple[Any, Any], number: Any) -> _Array:
        b = self.builder
        n, c, down, right = self.strides(number)
        base = b.add(b.mul(b.zext(self.image, I64), n), b.mul(b.zext(self.channel, I64), c))
        return _Array(pointer, base, down, right)

    def address(self, array: _Array, y: Any, x: Any) -> tuple[Any, ...]:
        """Of an element, for a load or a store."""
        b = self.builder
        inside = b.add(b.mul(b.sext(y, I64), array.down), b.mul(b.sext(x, I64), array.right))
        return (*array.pointer, types.int64, b.add(array.base, inside))

    def fetch(self, array: _Array, y: Any, x: Any, dtype: str) -> Value:
        loaded = _load(self.context, self.builder, self.address(array, y, x), 1, readonly=False)[0]
        return Value(self.builder, _widen(self.builder, loaded, dtype))

    def start(self, at: Any) -> Any:
        """Of the buffer of a pass: they alternate, and the last result but one lies in that at 0."""
        b = self.builder
        odd = b.and_(b.sub(self.header(table.PASSES), at), I32(1))
        return b.add(b.select(b.icmp_signed("==", odd, I32(1)), self.header(table.FAR), I32(0)), self.lane)

    def element(self, index: Any) -> Any:
        return element_pointer(self.context, self.builder, *self.shared, types.int32, index)

    # -------------------------------------------------------- operations
    def parameters(self, at: Any, count: int) -> list[Value]:
        """So many of this channel, from the one numbered `at` of this pass on."""
        b = self.builder
        row, step = self.strides(I32(2))[:2]
        first = b.zext(b.add(self.field(self.at, table.PARAMETER), at), I64)
        start = b.add(b.mul(b.zext(self.channel, I64), row), b.mul(first, step))
        return numbers_at(self.context, b, self.pointers[2], start, step, count)

    def numbers(self, operations: Sequence[Pointwise], at: int) -> list[list[Value]]:
        """The parameters of this channel, from the one numbered `at` of this pass on."""
        every = iter(self.parameters(I32(at), sum(each.numbers for each in operations)))
        return [[next(every) for _ in range(each.numbers)] for each in operations]

    def further(self, operations: Sequence[Pointwise], number: int) -> list[_Array]:
        """What the operations add, from the array numbered `number` of this pass on."""
        b, found = self.builder, []
        for k in range(sum(each.kind == "add" for each in operations)):
            which = b.add(self.field(self.at, table.ADDED), I32(number + k))
            pointer = self.pointers[3][1]
            for other in range(1, 4):
                same = b.icmp_signed("==", which, I32(other))
                pointer = b.select(same, self.pointers[3 + other][1], pointer)
            found.append(self.array((self.pointers[3][0], pointer), b.add(which, I32(3))))
        return found

    def chain(self, operations: Sequence[Pointwise], at: int, number: int) -> Callable[[Value, Any, Any], Value]:
        """What does the operations one after another to the element of a place."""
        numbers, arrays = self.numbers(operations, at), self.further(operations, number)

        def compute(v: Value, y: Any, x: Any) -> Value:
            more = iter(arrays)
            for operation, own in zip(operations, numbers, strict=True):
                v = apply(operation, v, own, lambda: self.fetch(next(more), y, x, self.added))
            return v

        return compute

    # -------------------------------------------------------- a pass
    def emit(self, kind: Kind) -> None:
        """A loop over the patch: a turn of a thread is a strip of results, one below the other."""
        b, (before, window, after), (high, wide) = self.builder, kind.parts, (self.high, self.wide)
        strip = kind.strip
        rows = self.buffer(window) if kind.source == "buffer" else self.memory(before, window)
        count, adds = sum(each.numbers for each in before), sum(each.kind == "add" for each in before)
        follow = self.chain(after, count + window.numbers, adds)
        out = self.array(self.pointers[0], I32(1))
        strips = b.udiv(b.add(b.sub(high.high, high.low), I32(strip - 1)), I32(strip))
        items = b.mul(b.mul(strips, wide.held), I32(self.group))
        magic = b.zext(self.field(self.at, table.MAGIC), I64)
        single = b.icmp_signed("==", wide.held, I32(1))

        start, pitch = self.start(self.at), b.mul(wide.held, I32(self.group))
        weights = self.weights(window, count, is_unrolled(kind.parts, kind.source == "stream"))

        def keep(v: Value, y: Any, x: Any, index: Any) -> None:
            """Into the buffer, and in the place of padding what the next window disregards."""
            valid = b.and_(b.icmp_unsigned("<", y, high.size), b.icmp_unsigned("<", x, wide.size))
            b.store(b.select(valid, v.value, self.padding), self.element(index))

        def store(v: Value, y: Any, x: Any, index: Any) -> None:
            if kind.source == "stream":
                self.write(out, v, y, x)
            elif kind.source == "load":
                keep(v, y, x, index)
            else:
                with b.if_else(self.last) as (then, otherwise):
                    with then:
                        self.write(out, v, y, x)
                    with otherwise:
                        keep(v, y, x, index)

        with _loop(b, self.thread, items, I32(self.threads)) as item:
            place = b.lshr(item, I32(self.group.bit_length() - 1))
            row = b.trunc(b.lshr(b.mul(b.zext(place, I64), magic), I64(32)), I32)
            row = b.select(single, place, row)
            y = b.add(high.low, b.mul(row, I32(strip)))
            x = b.add(wide.low, b.sub(place, b.mul(row, wide.held)))
            with b.if_then(b.icmp_signed("<", x, wide.high)):
                found = []
                x_in = _least_unsigned(b, x, b.sub(wide.size, I32(1)))
                for r, v in enumerate(self.windows(kind, rows, y, x, weights)):
                    y_in = _least_unsigned(b, b.add(y, I32(r)), b.sub(high.size, I32(1)))
                    found.append(follow(v, y_in, x_in))
                # rows before the strip, its own but the first, the columns before x
                place = b.add(place, b.mul(row, b.mul(wide.held, I32(strip - 1))))
                index = b.add(start, b.mul(place, I32(self.group)))
                for r, v in enumerate(found):
                    below = b.add(y, I32(r))
                    with b.if_then(b.icmp_signed("<", below, high.high)):
                        store(v, below, x, b.add(index, b.mul(pitch, I32(r))))

    def write(self, out: _Array, v: Value, y: Any, x: Any) -> None:
        """Into out, where the channel is one."""
        b = self.builder
        with b.if_then(self.inside):
            _store(self.context, b, self.address(out, y, x), _narrow(b, [v.value], self.result))

    # -------------------------------------------------------- windows
    def memory(self, before: Sequence[Pointwise], window: Window) -> Rows:
        """Of x: every tap asks whether there is an element, and does what goes before the window."""
        b, x_at = self.builder, self.array(self.pointers[1], I32(0))
        h, w = self.header(table.ROWS), self.header(table.COLUMNS)
        first = self.chain(before, 0, 0)
        nothing = self.nothing(window)
        sure = window.kernel == window.stride == (1, 1) and window.before == window.after == (0, 0)

        def rows(left: Any) -> Any:
            def row(y: Any) -> Any:
                def tap(across: Any) -> Value:
                    x = b.add(left, across)
                    inside = b.and_(b.icmp_unsigned("<", y, h), b.icmp_unsigned("<", x, w))
                    y_in, x_in = (_least_unsigned(b, i, b.sub(size, I32(1))) for i, size in ((y, h), (x, w)))
                    v = first(self.fetch(x_at, y_in, x_in, self.source), y_in, x_in)
                    return v if sure else select(v.new(inside), v, nothing)

                return tap

            return row

        return rows

    def buffer(self, window: Window) -> Rows:
        """Of the result before this one, where all taps are."""
        b, before = self.builder, self.builder.sub(self.at, I32(1))
        high, wide = self.boxes(before)
        start, extent = self.start(before), window.extents[1]
        last_row = b.sub(b.sub(high.high, high.low), I32(1))
        last_column = b.sub(b.sub(wide.high, wide.low), I32(extent))

        def rows(left: Any) -> Any:
            # what is beyond belongs to results that are not kept
            column = _least_unsigned(b, b.sub(left, wide.low), last_column)

            def row(y: Any) -> Any:
                below = _least_unsigned(b, b.sub(y, high.low), last_row)
                place = b.add(b.mul(below, wide.held), column)
                index = b.add(start, b.mul(place, I32(self.group)))
                return lambda across: Value(b, b.load(self.element(b.add(index, b.mul(across, I32(self.group))))))

            return row

        return rows

    def nothing(self, window: Window) -> Value:
        """What changes no result of a window."""
        return Value(self.builder, self.floats(float("-inf") if window.op == "max" else 0.0))

    def weights(self, window: Window, at: int, unrolled: bool) -> Callable[[Any], Value]:
        """Of a depthwise window, by an element's number; loaded once where all are written out."""
        if unrolled:
            return self.parameters(I32(at), window.numbers).__getitem__
        return lambda k: self.parameters(self.builder.add(k, I32(at)), 1)[0]

    def windows(self, kind: Kind, rows: Rows, y: Any, x: Any, weights: Callable[[Any], Value]) -> list[Value]:
        """The results of a strip of windows one below the other, the first of them at (y, x).

        A row of a window is summed before it is added to the window's sum, as `gpu/windows` does."""
        b, window, source, strip = self.builder, kind.parts.window, kind.source, kind.strip
        average, weighs = window.op == "avg", window.op == "depthwise"
        (k0, k1), (s0, s1), (b0, b1), (d0, d1) = window.kernel, window.stride, window.before, window.dilation
        top, left = (b.sub(b.mul(i, I32(s)), I32(padding)) for i, s, padding in ((y, s0, b0), (x, s1, b1)))
        row = rows(left)

        def join(total: Value, more: Value) -> Value:
            return _rounded("add", total, more) if average else total.larger(more)

        found: list[Value] = []
        if is_unrolled(kind.parts, source == "stream"):
            sums: list[Any] = [None] * strip
            for down in rows_of(window, strip):
                tap = row(b.add(top, I32(down)))
                if weighs:
                    taps = [tap(I32(k * d1)) for k in range(k1)]
                    for r in range(strip):
                        k, rest = divmod(down - r * s0, d0)
                        for t, v in enumerate(taps if 0 <= k < k0 and not rest else ()):
                            sums[r] = mad(v, weights(k * k1 + t), sums[r] or self.nothing(window))
                    continue
                line = functools.reduce(join, [tap(I32(k * d1)) for k in range(k1)])
                for r in range(strip):
                    if down - r * s0 in range(0, k0 * d0, d0):
                        # a sum of zeros is 0, whatever their signs
                        start = self.nothing(window) if average else None
                        sums[r] = sums[r] or start
                        sums[r] = line if sums[r] is None else join(sums[r], line)
            found = sums
        else:
            found = [self.nothing(window)]
            with _loop(b, I32(0), I32(k0 * d0), I32(d0), found) as down_:
                tap, line_ = row(b.add(top, down_)), [self.nothing(window)]
                with _loop(b, I32(0), I32(k1 * d1), I32(d1), found if weighs else line_) as across:
                    if weighs:
                        at = b.add(b.mul(b.udiv(down_, I32(d0)), I32(k1)), b.udiv(across, I32(d1)))
                        found[0] = mad(tap(across), weights(at), found[0])
                    else:
                        line_[0] = join(line_[0], tap(across))
                found[0] = found[0] if weighs else join(found[0], line_[0])
        if average:
            columns = self.taps(window, 1, left, source)
            for r in range(strip):
                count = b.mul(self.taps(window, 0, b.add(top, I32(r * s0)), source), columns)
                found[r] = divide_value(found[r], found[r].new(b.sitofp(count, self.floats)))
        return found

    def taps(self, window: Window, d: int, start: Any, source: str) -> Any:
        """How many taps of a window from `start` on count in its mean along one dimension."""
        b, k, dilation = self.builder, window.kernel[d], window.dilation[d]
        if window.before[d] == window.after[d] == 0 and not window.ceil:
            return I32(k)
        if source == "buffer":
            size = self.field(b.sub(self.at, I32(1)), (table.HEIGHT, table.WIDTH)[d] + 5)
        else:
            size = self.header((table.ROWS, table.COLUMNS)[d])

        def up_to(limit: Any) -> Any:
            room = _least(b, b.sub(limit, start), I32(0), ">")
            return _least(b, I32(k), b.udiv(b.add(room, I32(dilation - 1)), I32(dilation)))

        if window.count_include_pad:
            return up_to(b.add(size, I32(window.after[d])))
        return b.sub(up_to(size), up_to(I32(0)))


@intrinsic
def header_of(typingctx, place, name):  # type: ignore[no-untyped-def]
    """A word of the table's header."""
    which = int_literal(name)
    if which is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        place = asm(builder, "cvta.to.param.u64 $0, $1;", [args[0]], [I64])[0]
        return asm(builder, f"ld.param.b32 $0, [$1+{4 * which}];", [place], [I32])[0]

    return types.int32(types.uint64, name), codegen


@intrinsic
def run_pass(typingctx, key, dtypes, group, threads, pointers, place, shared, at, row, column, image, channel, thread):  # type: ignore[no-untyped-def]
    """One pass over patch (row, column) of an image's channels from `channel` on; `key` names the kernel's kinds,
    `dtypes` those of x, out and what is added, `place` is the table's address."""
    names, stored, side, count = string_literal(key), string_literal(dtypes), int_literal(group), int_literal(threads)
    if names is None or stored is None or side is None or count is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        one = _Pass(context, builder, sig, args, stored.split(), side, count)
        every = kinds_of(names)
        done = builder.append_basic_block("done")
        blocks = [builder.append_basic_block("kind") for _ in every]
        choice = builder.switch(one.kind, blocks[-1])
        for number, block in enumerate(blocks[:-1]):
            choice.add_case(I32(number), block)
        for kind, block in zip(every, blocks, strict=True):
            builder.position_at_end(block)
            one.emit(kind)
            builder.branch(done)
        builder.position_at_end(done)
        return void(context)

    return types.void(key, dtypes, group, threads, pointers, types.uint64, shared, *[types.int32] * 6), codegen
