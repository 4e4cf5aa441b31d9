"""What the code of a reduce kernel depends on, and what it reads of a problem."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from numbaprims.cpu.regions import Regions
from numbaprims.cpu.simd import Arguments
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.graph import COSTS, PARTS, Graph, Node
from numbaprims.formulas.reductions import graph_of
from numbaprims.ops._reduction_problem import block_rows

#: Arrays of a launch by number.  merged, parts: results of rows, and of each of their chunks those of one pass; kept:
#: what a worker keeps of a row.
MOST_ARRAYS = 15
ARGS = Arguments(
    arrays=tuple(f"a{i}" for i in range(MOST_ARRAYS)),
    floats=tuple(f"f{i}" for i in range(6)),
    ints=("plan",),
    shared=("merged", "parts"),
    own=("kept",),
)

#: Words of a plan: elements of the innermost reduced dimension, and how many runs of them a row has (segments);
#: elements of the innermost kept dimension; elements and segments of a chunk, how many chunks a segment is cut into
#: and how many there are; rows, and those of a block whose columns are summed up.  Then the sizes of kept and of
#: reduced dimensions and each array's strides along both.
INNER, SEGMENTS, LANES, CHUNK, CHUNK_SEGMENTS, CUTS, CHUNKS, ROWS, BLOCK, SIZES = range(10)

#: Behind the dtype of an array of one value for neighbouring rows.
FLAT = "*"

#: More operations and loads than this give a value of an earlier pass back at a higher price than memory does.
DEAR = 4


#: Times as many of neighbouring rows as usual in a vector, of formulas that leave registers.
CHEAP = 4
#: Bytes of a page of memory.
PAGE = 4096
#: Bytes of a row, at most, that is written by way of a buffer.
STAGED = 8192
#: Bytes of a row of a result from which on a wider array is taken to be written whole.
NARROW = 256


#: Asked for is the same place of the next row, which lies behind this one, or of the next rows side by side; or the
#: next elements of all rows side by side, in the order of memory; or what lies `FURTHER` bytes behind those at hand; or
#: the next row, and in the first pass the results of this one, which a later pass writes.
NEXT_ROW, NEXT_ROWS, BEHIND, WRITTEN_TOO = -1, -2, -3, -4
FURTHER = 1024


class Variant(NamedTuple):
    """A kernel of a formula."""

    formula: str
    online: int
    """Whether sums of exponentials are computed in one pass."""
    dtypes: str
    """Of the arrays of a launch, results first: "f32,f32"; with `FLAT` behind those of kind "flat"."""
    compute: str
    lanes: str
    """What a vector holds: "along" the reduced axis, "across" it (neighbouring rows), or "one" element."""
    W: int
    """Lanes of a vector."""
    U: int
    """Vectors side by side."""
    registers: int
    """Vectors of a row that stays in registers from pass to pass; 0 if it does not."""
    kept: int
    """Dimensions that are kept, and that are reduced."""
    reduced: int
    stores: str
    """How elements are written: "plain", "stream" past the caches, "stage" as well, by way of a buffer."""
    ahead: int
    """Bytes ahead of the first reading that are asked for; 0: none; `NEXT_ROW` and the like."""
    role: str
    """"rows": all passes over a row; "part": one pass over a chunk; "sweep": one over those of all rows side by side;
    "merge": the chunks of one pass."""
    at: int = 0
    """Which pass."""
    digest: str = ""
    """Of the graph."""
    together: int = 1
    """Rows side by side along which vectors lie: what one waits for hides behind the others' arithmetic."""
    run: int = 0
    """Vectors of a run of neighbouring elements, the last one by a mask, without loops; 0: loops. Of a sweep: elements
    of each row at a time."""
    chunked: int = 0
    """Whether what is summed up along a row is that of its chunks, merged in their order."""
    folded: int = 0
    """How many rows there are where lanes hold several elements of each, one after the other; 0: one of each."""

    @property
    def graph(self) -> Graph:
        return graph_of(self.formula, bool(self.online))

    @property
    def keeps(self) -> Mapping[Node, int]:
        """Values of elements that a pass keeps for later ones, in memory -> the pass."""
        if self.role != "rows" or self.lanes == "one" or self.registers:
            return {}
        waits = self.lanes == "along" and self.stores == "plain"
        return kept_of(self.graph, self.dtypes.split(","), self.compute if waits else "")

    @property
    def text(self) -> str:
        return " ".join(str(word) for word in self)

    @classmethod
    def parse(cls, text: str) -> Variant:
        kinds = get_type_hints(cls).values()
        return cls(*(kind(word) for kind, word in zip(kinds, text.split(), strict=True)))

    @property
    def waits_in(self) -> int:
        """The result in whose row the first kept value waits for the last pass, not in scratch memory; else -1."""
        if self.lanes != "along" or self.stores != "plain":
            return -1
        return waits_in(self.graph, self.keeps, self.dtypes.split(","), self.compute)

    @property
    def stored_lanes(self) -> int:
        """Lanes of a uniform value in scratch memory."""
        return self.W if self.lanes == "across" else 1


def waits_in(graph: Graph, keeps: Mapping[Node, int], dtypes: Sequence[str], compute: str) -> int:
    """The result in whose row the first kept value can wait; else -1.

    Later passes read no operand there, so that the result may still be one.
    """
    if not keeps:
        return -1
    later = range(next(iter(keeps.values())) + 1, len(graph.passes))
    if any(node.op == "input" and not node.uniform for p in later for node in graph.reads(p, keeps)):
        return -1
    outputs = (k for k in graph.passes[-1].outputs if graph.results[k][1] == "row")
    return next((k for k in outputs if dtypes[k] == compute), -1)


def kept_of(graph: Graph, dtypes: Sequence[str], compute: str) -> Mapping[Node, int]:
    """Values that passes keep; `compute` is the type of the results in whose rows they may wait."""
    # there even what is cheap: x is not read again, and the result's lines come while there is something to compute
    every = graph.kept(0)
    return every if len(every) == 1 and waits_in(graph, every, dtypes, compute) >= 0 else graph.kept(DEAR)


class Cut(NamedTuple):
    """How a row is cut into chunks: elements of the innermost dimension, or whole runs of it."""

    inner: int
    segments: int

    @classmethod
    def of(cls, problem: Any, elements: int, multiple: int = 64) -> Cut:
        """Chunks of about so many elements, and alike."""
        inner, segments = problem.reduced[-1], math.prod(problem.reduced[:-1])
        if inner >= elements:
            return cls(even(inner, elements, multiple), 1)
        return cls(max(1, inner), even(segments, max(1, elements // max(1, inner)), 1))

    def chunks(self, problem: Any) -> int:
        return -(-problem.reduced[-1] // self.inner) * -(-math.prod(problem.reduced[:-1]) // self.segments)


def even(n: int, most: int, multiple: int) -> int:
    """The size of equal parts of n, at most about `most`, that is a multiple."""
    each = -(-n // max(1, -(-n // most)))
    return max(1, -(-each // multiple)) * multiple


def regions_of(variant: Variant, problem: Any, tiles: int, chunks: int) -> Regions:
    """What a kernel of rows keeps of one, or what those of chunks hand on."""
    graph, size, width = variant.graph, DTYPES[variant.compute].itemsize, variant.stored_lanes
    if variant.role == "rows":
        rows = len(variant.keeps) - (variant.waits_in >= 0)
        return Regions(own={"kept": rows * (problem.n * width + variant.W) * size}) if rows else Regions()
    state = sum(PARTS[node.op] for node in graph.reductions)
    most = max(sum(PARTS[node.op] for node in each.reductions) for each in graph.passes)
    return Regions({"merged": tiles * state * size * width, "parts": tiles * chunks * most * size * width})


def plan_of(problem: Any, cut: Cut) -> np.ndarray:
    """The words that kernels read."""
    words = [0] * SIZES
    words[INNER], words[SEGMENTS] = problem.reduced[-1], math.prod(problem.reduced[:-1])
    words[LANES] = problem.kept[-1]
    words[CHUNK], words[CHUNK_SEGMENTS] = cut
    words[CUTS], words[CHUNKS] = -(-problem.reduced[-1] // cut.inner), cut.chunks(problem)
    words[ROWS], words[BLOCK] = problem.rows, block_rows(problem.rows)
    words += [*problem.kept, *problem.reduced]
    for kept, reduced in problem.strides:
        words += [*kept, *reduced]
    return np.array(words, np.int64)


def row_steps(problem: Any, variant: Variant) -> tuple[int, ...]:
    """Of each array the bytes from row to row, where each tile is one and all lie one step apart."""
    if variant.role != "rows" or variant.lanes != "along" or len(problem.kept) > 1 or variant.graph.columns:
        return ()
    arrays = zip(problem.arrays, problem.strides, strict=True)
    return tuple(kept[0] * DTYPES[each.dtype].itemsize for each, (kept, _) in arrays)


def stored_as(array: Any) -> str:
    """An array among the dtypes of a variant."""
    return str("u8" if array.dtype == "bool" else array.dtype) + (FLAT if array.kind == "flat" else "")


def apart(problem: Any) -> bool:
    """Whether rows that are read do not lie one behind the other."""
    operands = zip(problem.arrays, problem.strides, strict=True)
    read = list(operands)[len(problem.results) :]
    return problem.rows > 1 and any(each.kind == "row" and kept[-1] != problem.n for each, (kept, _) in read)


def order_of(steps: Sequence[int]) -> tuple[int, ...]:
    """Dimensions, the one with the largest steps first."""
    return tuple(sorted(range(len(steps)), key=lambda dim: -abs(steps[dim])))


def parts_of(problem: Any) -> list[int]:
    """Parts of each reduction, by exponentials in one pass."""
    return [PARTS[node.op] for node in graph_of(problem.formula, True).reductions]


def wide_sums(problem: Any) -> int:
    """Times as many of neighbouring rows as usual in a vector, as there are registers for their sums.

    Lines follow one another further.  Sums of 784 x 256 took 8.0 us and by four times as many 5.0, of 6400 x 256 70 and
    57, variances of 784 x 512 26 and by twice as many 18; maxima, which need more registers, 8.0 and 9.8 (Zen 5).
    """
    ops = [node.op for node in graph_of(problem.formula, True).reductions]
    return CHEAP if ops == ["sum"] else 2 if ops in (["sum", "sum"], ["moments"]) else 1


def leaves_rows(problem: Any) -> bool:
    """Whether a result has elements, not one number of each row."""
    return any(each.kind == "row" for each in problem.arrays[: len(problem.results)])


def reads_beside(problem: Any, target: Any) -> bool:
    """Whether long rows come from memory faster four side by side, with nothing asked for, than one by one.

    Sums of 8192 x 4096 took 12.8 ms on one thread and 6.9 on two, 8.8 and 5.6 so, maxima 12.6 and 8.0, 9.1 and 6.1; of
    one row of as many, of which nothing is asked for either, 12.5 and 5.9, 10.5 and 5.5.  Of 50,000 rows of 4 KB maxima
    took 1.02 to 1.05 times as long, of longer ones variances 0.6 to 1.0 times and places of the largest 1.0 to 1.7,
    which have more sums than there are registers (Zen 3).
    """
    one = len(problem.reduced) == 1 and not leaves_rows(problem) and len(graph_of(problem.formula).passes) == 1
    long = problem.n * DTYPES[problem.dtype].itemsize >= 2 * PAGE and problem.bytes_moved() > 1.5 * target.third
    return bool(target.rates.beside and one and long and sum(parts_of(problem)) == 1 and not apart(problem))


def unasked(problem: Any, target: Any) -> bool:
    """Whether a core that reads rows side by side well is asked for nothing, whatever its `ahead`.

    Maps of two arrays take 0.70 to 0.98 of the time so in the caches, 0.75 to 1.05 from memory, those of one array 0.8
    to 1.75; between the two, of 25 MB of 32, 0.93 to 1.3, and comparisons from memory 1.04 to 1.19 (Zen 3).
    """
    if reads_beside(problem, target):
        return True
    read = [each.dtype for each in problem.arrays[len(problem.results) :] if each.kind == "row"]
    if not target.rates.beside or len(read) < 2 or not graph_of(problem.formula).is_map:
        return False
    moved = problem.bytes_moved()
    return bool(moved <= target.third / 2 or (moved > 3 * target.third and problem.arrays[0].dtype == read[0]))


def shares(problem: Any) -> bool:
    """Whether rows side by side have dear values in common.

    What is only loaded once more is not worth it: 100 x 4096 and a row took 256 us by eight rows at a time, whose lines
    share the sets of the first-level cache, and 52 one after the other (Zen 4).
    """
    graph = graph_of(problem.formula)
    return not graph.reductions and sum(COSTS.get(node.op, 0) for node in graph.common) >= COSTS["div"]


@functools.cache
def has_exponentials(formula: str) -> bool:
    """Whether it sums exponentials, in one pass where that is wanted."""
    return any(node.op == "exp_sum" for node in graph_of(formula, True).nodes)


@functools.cache
def takes_exponentials(formula: str) -> bool:
    """Whether any pass computes exponentials."""
    return any("exp" in node.op for node in graph_of(formula).nodes)


@functools.cache
def folds(formula: str) -> bool:
    """Whether lanes may hold several elements of a row: no sum counts them, none asks where it stands."""
    counted = ("length", "position", "moments", "first")
    return not any(node.op in counted for online in (False, True) for node in graph_of(formula, online).nodes)


@functools.cache
def branches(formula: str, online: bool, p: int) -> bool:
    """Whether a pass that sums nothing up branches by what its elements are: once for four vectors."""
    graph = graph_of(formula, online)
    return not graph.passes[p].reductions and any(node.op == "quotients" for node in graph.computed(p, {}))


def spread(problem: Any) -> float:
    """Times that the memory from the first to the last element of the first result is as large as it.

    Parts of a `concat` leave as the whole does: of two of 32 x 14 x 14 x 512 each fits into the last cache, and
    2.8 ms were taken by plain stores, 1.3 past the caches (Zen 4, 32 MB).
    """
    for operand, (kept, reduced) in zip(problem.arrays, problem.strides, strict=True):
        if operand.kind == "row" and problem.n * DTYPES[operand.dtype].itemsize >= NARROW:
            steps = zip((*problem.kept, *problem.reduced), (*kept, *reduced), strict=True)
            return float(1 + sum((size - 1) * abs(step) for size, step in steps)) / (problem.rows * problem.n)
    return 1.0


def in_lines(problem: Any) -> bool:
    """Whether all runs of the first result begin at the same place of a line of the cache."""
    for operand, (kept, reduced) in zip(problem.arrays, problem.strides, strict=True):
        if operand.kind == "row":
            line = 64 // DTYPES[operand.dtype].itemsize
            return all(step % line == 0 for step in (*kept, *reduced) if step != 1)
    return False


def result_bytes(problem: Any) -> float:
    """Bytes of the results."""
    size = sum(DTYPES[each.dtype].itemsize for each in problem.arrays[: len(problem.results)] if each.kind == "row")
    return float(problem.rows * problem.n * size)


def moving(problem: Any, target: Any) -> float:
    """Seconds that one core takes to move the operands.

    In the second level of an Emerald Rapids fills take 2.8 times as long as reading, scaling 2.3 for its results, sums
    1.9: a fill of 393 KB 8.3 us, which was taken for work too little for two threads (torch's 6.6).
    """
    moved, left = problem.bytes_moved(), result_bytes(problem) if problem.bytes_moved() <= target.l2 else 0.0
    return float((moved + (target.rates.stores - 1) * left) / target.bandwidth(moved))
