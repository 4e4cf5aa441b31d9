"""Range kernels of formulas with reductions: whole rows, one pass over chunks of rows, and chunks merged.

One intrinsic emits all of a range, so Numba types one call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.reduce.emit import Emitter, Walk
from numbaprims.cpu.reduce.variant import ARGS, BEHIND, BLOCK, CHUNKS, LANES, NEXT_ROWS, ROWS, Variant, branches
from numbaprims.cpu.simd import stream_fence
from numbaprims.cpu.simd.emit import first_lanes_value, store_value
from numbaprims.cpu.simd.loops import once, repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import ELEMENTS
from numbaprims.formulas.graph import PARTS
from numbaprims.formulas.stacks import PREFIX
from numbaprims.formulas.value import at_most


class _Parts:
    """Uniform values in scratch memory: of each row the merged ones, and of each chunk those of one pass."""

    def __init__(self, emitter: Emitter) -> None:
        self.e = emitter
        graph = emitter.graph
        #: Of the merged values of a row: where those of each pass begin.
        self.starts = [0]
        for each in graph.passes:
            self.starts.append(self.starts[-1] + sum(PARTS[node.op] for node in each.reductions))
        self.reductions = graph.passes[emitter.v.at].reductions
        self.width = self.starts[emitter.v.at + 1] - self.starts[emitter.v.at]

    def _at(self, region: str, index: Value, values: int, k: int) -> Any:
        size = ELEMENTS[self.e.v.compute][0] // 8 * self.e.v.stored_lanes
        return self.e.region(region, (index * values + k) * size)

    def of_row(self, row: Value, p: int, k: int) -> Any:
        return self._at("merged", row, self.starts[-1], self.starts[p] + k)

    def of_chunk(self, row: Value, chunk: Value, k: int) -> Any:
        e = self.e
        # of neighbouring rows one behind the other: a sweep comes back to those of its chunk again and again
        index = chunk * e.row_blocks() + row if e.across else row * e.plan(CHUNKS) + chunk
        return self._at("parts", index, self.width, k)

    def load(self, pointer: Any) -> Value:
        e = self.e
        if not e.across:
            return e.splat(e.b.load(pointer), e.row_vector)
        return e.load_vector(pointer, 0, None, e.v.compute)

    def store(self, pointer: Any, value: Value) -> None:
        e = self.e
        if e.across:
            store_value(e.b, pointer, 0, value.value)
        else:
            e.b.store(e.first(value), pointer)

    def load_rows(self, row: Any) -> None:
        """Set the merged values of the passes before this one."""
        for p, each in enumerate(self.e.graph.passes[: self.e.v.at]):
            values = [self.load(self.of_row(row, p, k)) for k in range(self.starts[p + 1] - self.starts[p])]
            self.e.set_parts(each.reductions, self.e.by_node(each.reductions, values))


def _rows(emitter: Emitter, tile: Any, index: Any = ()) -> Any:
    """All passes over a row, or over those of a team; the index of the next row."""
    for k, each in enumerate(emitter.team):
        each.enter_row(tile + k, None, index)
        index = each.next_index(index) if index else ()
    emitter.stores.begin_row()
    for p in range(len(emitter.graph.passes)):
        emitter.run_pass(p)
    emitter.stores.end_row()
    emitter.share([node for node in emitter.graph.outputs if node.uniform])
    for each in emitter.team:
        each.store_uniforms()
    return index


def _part_of(emitter: Emitter, tile: Any) -> tuple[Any, Any]:
    """(row, chunk): one row after the other; blocks of rows side by side first, whose lines follow one another."""
    if not emitter.across:
        return tile // emitter.plan(CHUNKS), tile % emitter.plan(CHUNKS)
    rows = emitter.row_blocks()
    return tile % rows, tile // rows


def _part(emitter: Emitter, tile: Any) -> None:
    """One pass over a chunk."""
    parts = _Parts(emitter)
    row, chunk = _part_of(emitter, tile)
    emitter.enter_row(row)
    parts.load_rows(row)
    region, count = emitter.chunk(chunk)
    found = emitter.run_region(emitter.v.at, region, count)
    for k, value in enumerate(part for each in found for part in each):
        parts.store(parts.of_chunk(row, chunk, k), value)


def _sweep(emitter: Emitter, tile: Any) -> None:
    """One pass over a chunk of all rows side by side, in the order of memory; sums, if any, wait in the chunk's parts.

    Down one block of rows after the other, 256 bytes of each kilobyte, 51 MB came at 11 GB/s, so at 33; two or four
    elements of a row at a time, for which sums are read and written once, 11 to 15.  Of rows of 16 KB, whose sums no
    longer stay in the first-level cache, eight at a time are as many streams: the variances of 8,192 columns of 4,096
    floats took 13 ms one by one, 11.1 down the columns, 5.8 so (Zen 4).
    """
    b, v, p = emitter.b, emitter.v, emitter.v.at
    parts, blocks = _Parts(emitter), emitter.blocks()
    outer = emitter.row_blocks() // blocks
    chunk, index = tile // outer, tile % outer
    region, count = emitter.chunk(chunk)
    whole = emitter.plan(LANES) // v.W

    reductions = emitter.graph.passes[p].reductions
    anchored = [node.op == "moments" for node in reductions]

    def each_block(do: Callable[[list[Any], Value], list[Value]]) -> None:
        """Write what `do` makes of the places of each block's parts, whole blocks first."""

        def one(state: list[Any]) -> list[Any]:
            emitter.enter_row(index, state[0])
            row = index * blocks + state[0]
            parts.load_rows(row)
            places = [parts.of_chunk(row, chunk, k) for k in range(parts.width)]
            for place, value in zip(places, do(places, state[0]), strict=False):
                parts.store(place, value)
            return [state[0] + 1]

        emitter.lane_mask = None
        state = repeat(b, whole, [emitter.number(0)], one, "block", True)
        emitter.lane_mask = first_lanes_value(b, emitter.plan(LANES) - whole * v.W, v.W)
        once(b, whole < blocks, state, one, "some")

    def begin(places: list[Any], block: Value) -> list[Value]:
        emitter.prepare(p)
        anchors = emitter.anchors(p, region)
        return [*emitter.walk(p, region, count, anchors).start, *(each for each in anchors if each is not None)]

    def reopened(places: list[Any]) -> tuple[Walk, list[Value]]:
        """(the walk, its sums so far): behind them wait the anchors, as moments have a part more than sums."""
        waiting = iter(places[parts.width - sum(anchored) :])
        anchors = [parts.load(next(waiting)) if each else None for each in anchored]
        walk = emitter.walk(p, region, count, anchors)
        return walk, [parts.load(place) for place in places[: len(walk.start)]]

    def elements(count: int) -> Callable[[list[Any]], list[Any]]:
        def step(state: list[Any]) -> list[Any]:
            def add(places: list[Any], block: Value) -> list[Value]:
                walk, sums = reopened(places)
                if v.ahead == NEXT_ROWS and count > 1:
                    emitter.prefetch_rows(state[0] + count, block, blocks, count)
                for at in range(count if v.ahead == BEHIND else 0):
                    emitter.prefetch_behind(state[0] + at)
                return emitter.some(walk.step, count)([state[0], *sums])[1:]

            each_block(add)
            return [state[0] + count]

        return step

    def end(places: list[Any], block: Value) -> list[Value]:
        walk, sums = reopened(places)
        return [value for each in walk.finish(sums) for value in each]

    if reductions:
        each_block(begin)
    state = repeat(b, region.count // v.run, [region.inner], elements(v.run), "sweep", True)
    if v.run > 1:
        repeat(b, region.inner + region.count - state[0], state, elements(1), "sweep_rest", True)
    if reductions:
        each_block(end)


def _merge(emitter: Emitter, row: Any) -> None:
    """The chunks of a row in their order; behind the last reduction the row's own results too."""
    parts, p = _Parts(emitter), emitter.v.at
    emitter.enter_row(row)
    parts.load_rows(row)

    def one(state: list[Any]) -> list[Any]:
        _, count = emitter.chunk(state[0])
        found = [parts.load(parts.of_chunk(row, state[0], k)) for k in range(parts.width)]
        return [state[0] + 1, *emitter.merged(parts.reductions, state[1:], count, found)]

    start = [emitter.number(0), *emitter.nothing(parts.reductions)]
    found = repeat(emitter.b, emitter.plan(CHUNKS), start, one, "chunk")[2:]
    by_node = emitter.unfolded(parts.reductions, emitter.by_node(parts.reductions, found))
    emitter.set_parts(parts.reductions, by_node)
    for k, value in enumerate(value for each in by_node for value in each):
        parts.store(parts.of_row(row, p, k), value)
    if parts.starts[p + 1] == parts.starts[-1]:
        emitter.store_uniforms()


_ROLES = {"rows": _rows, "part": _part, "sweep": _sweep, "merge": _merge}


@intrinsic(prefer_literal=True)
def _emit(typingctx: Any, variant: Any, args: Any, worker: Any, lo: Any, hi: Any) -> Any:
    """The tiles lo ... hi - 1 of a variant, given as its text."""
    if not isinstance(variant, types.StringLiteral):
        return None
    chosen = Variant.parse(variant.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        b, (lo, hi) = builder, (Value(builder, value) for value in values[3:])
        emitter = Emitter(b, chosen, values[1], values[2])
        emitter.stores.open(context)
        role, ends = _ROLES[chosen.role], [lo, hi - 1]

        def one(state: list[Any]) -> list[Any]:
            tile, *index = state
            emitter.stores.ends = tile.equals(ends[0]), tile.equals(ends[1])
            if index:
                return [tile + 1, *_rows(emitter, tile, index)]
            if not emitter.across or chosen.role == "sweep":
                role(emitter, tile)
            else:
                block = _part_of(emitter, tile)[0] if chosen.role == "part" else tile
                left = emitter.lanes_left(block)
                with b.if_else((left >= chosen.W).value) as (whole, some):
                    with whole:
                        emitter.lane_mask = None
                        role(emitter, tile)
                    with some:
                        emitter.lane_mask = first_lanes_value(b, left, chosen.W)
                        role(emitter, tile)
            return [tile + 1]

        together = chosen.together
        lead = Emitter(b, chosen, values[1], values[2])
        lead.team += [Emitter(b, chosen, values[1], values[2]) for _ in range(together - 1)]

        def some(state: list[Any]) -> list[Any]:
            return [state[0] + together, *_rows(lead, state[0], state[1:])]

        def block(state: list[Any]) -> list[Any]:
            """Rows whose columns are summed up: a tile, so that the order of the sums is that of the rows."""
            size = emitter.plan(BLOCK)
            first, end = state[0] * size, at_most(state[0] * size + size, emitter.plan(ROWS))
            ends[:] = [first, end - 1]
            for each in (emitter, *lead.team):
                each.enter_block(state[0])
            emitter.clear_columns()

            def group(team: Emitter) -> Callable[[list[Any]], list[Any]]:
                def rows(state: list[Any]) -> list[Any]:
                    count = len(team.team)
                    # the columns first: dx may be written over what they are summed up from
                    for k, each in enumerate(team.team):
                        each.enter_row(state[0] + k)
                    team.add_columns()
                    repeat(b, emitter.number(count), [state[0]], one, "row", True)
                    return [state[0] + count]

                return rows

            left = repeat(b, (end - first) // together, [first], group(lead), "rows", True)
            repeat(b, end - left[0], left, group(emitter), "rest", True)
            return [state[0] + 1]

        if emitter.graph.columns:
            repeat(b, hi - lo, [lo], block, "block", True)
            return context.get_dummy_value()
        state = [lo, *(emitter.index(lo) if chosen.role == "rows" and not emitter.across else ())]
        if together > 1:
            state = repeat(b, (hi - lo) // together, state, some, "tiles", True)
        repeat(b, hi - state[0], state, one, "tile", True)
        return context.get_dummy_value()

    return types.void(variant, args, *[types.int64] * 3), codegen


@functools.cache
def make_kernel(variant: Variant) -> RangeKernel:
    """The range kernel of a variant: a tile is a row (W rows across), or a chunk of one."""
    text, streams = variant.text, variant.stores in ("stream", "stage")
    stack = variant.formula.startswith(PREFIX)

    # a stack has the bits of its operations one by one: products are rounded
    @range_kernel(f"reduce_{variant.role}", ARGS.types(), spec=(text,), contract=not stack)
    def reduce_rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        _emit(text, args, worker, lo, hi)
        if streams:
            stream_fence()

    return reduce_rows


def phase_variants(variant: Variant, sweeps: int = 0, spreads: bool = False) -> list[Variant]:
    """The kernels of a split over chunks: pass by pass one over all chunks, and one that merges them.

    Sums of all rows side by side are taken by so many elements of each at a time, if any; `spreads`: so are results
    that leave, element by element.
    """
    found = []
    for p, each in enumerate(variant.graph.passes):
        swept = 0 if each.outputs else sweeps
        if spreads and not each.reductions:
            swept = 1
        if swept:
            found.append(variant._replace(role="sweep", at=p, stores="plain", U=1, run=swept))
        else:
            own = variant._replace(role="part", at=p, stores=variant.stores if each.outputs else "plain")
            wide = own.lanes == "along" and branches(own.formula, bool(own.online), p)
            found.append(own._replace(W=own.W * own.U, U=1, run=0) if wide else own)
        if each.reductions:
            found.append(variant._replace(role="merge", at=p, stores="plain"))
    return found
