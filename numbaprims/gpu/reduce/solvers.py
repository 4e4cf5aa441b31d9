"""The solvers of the reduce engine on a GPU: softmax, batch normalisation, cross entropy and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.maps import MAP
from numbaprims.formulas.reductions import graph_of
from numbaprims.gpu import parts
from numbaprims.gpu.launch import Addresses, Step, by_alignment, make_launcher, step
from numbaprims.gpu.pointwise.walk import LAUNCH, reciprocal, seconds
from numbaprims.gpu.reduce.kernels import THREADS, Form, make_combine, make_fused, make_part
from numbaprims.gpu.reduce.maps import map_launcher, pack_width, tiled
from numbaprims.gpu.reduce.plans import Plan, key_of, plan_of
from numbaprims.gpu.solver import Solver

HELD = 32
"""Registers of a row that a thread keeps."""
BLOCKS = 1024
"""Blocks that chunks of long rows should make: some for each multiprocessor.  No GPU is asked: results would differ."""
MANY = 1 << 17
"""Threads that rows make where each loads four packs or more, and fewer states are merged then."""
CHUNK = 4096
"""Elements of a chunk at least, by all threads of a block."""
_LIMIT = (1 << 31) - (1 << 20)
_GRID = 65535
_SECTOR = 8
"""Elements of a sector of 32 bytes, one of which is wanted where they lie apart."""


def _power_of_2(n: int) -> int:
    """The next one that is not less."""
    return 1 << max(0, n - 1).bit_length()


def _width(problem: Any, plan: Plan) -> int:
    """Elements of a pack: as many as lie side by side and aligned in every array, 16 bytes of the largest at most."""
    long = [k for k, array in enumerate(problem.arrays) if array.kind in ("row", "along")]
    V = 16 // max(DTYPES[problem.arrays[k].dtype].itemsize for k in long)
    steps = [problem.reduced[-1]]
    for k in long:
        kept, reduced = problem.strides[k]
        steps += [s for s, n in zip(kept, problem.kept, strict=True) if n > 1]
        steps += [s for s, n in zip(reduced[:-1], problem.reduced[:-1], strict=True) if n > 1]
    while any(s % V for s in steps):
        V //= 2
    return V


def _loaded(plan: Plan, V: int) -> int:
    """Packs that a thread loads at a time: up to 4 accesses, and no more than 16 numbers of what no cache holds."""
    first = plan.kinds[plan.results :]
    each = max(1, *(sum(first[operand] == "row" for operand in plan.reads(p)) for p in range(plan.passes)))
    if any(not plan.reads(p) for p in range(plan.passes)):
        return 1
    return max(1, min(4, 16 // (V * each)))


def _rows_form(problem: Any, plan: Plan, V: int) -> Form:
    """Threads of a row: as few as hold it in registers; a block that walks over it where that is too long."""
    # weights that the results alone read are not kept, and may be all that there is
    keeps = all(plan.reads(p) for p in range(-1, plan.passes))
    packs, room = -(-problem.n // V), 0
    if keeps and packs:
        room = HELD // (V * len(plan.reads(-1)) * (DTYPES[plan.number].itemsize // 4))
    facts = (len(problem.kept), len(problem.reduced), V, False)
    least = min(32, _power_of_2(packs))
    few = max(_power_of_2(-(-packs // 4)), _SECTOR // V)
    if few < least and problem.rows * few >= MANY:
        least = few
    for T in (least, 64, 128, 256, 512, *[1024] * plan.light):
        K = -(-packs // T)
        if K <= room:
            return Form(False, T, V, K, True, *facts)
    return Form(False, THREADS if packs > 64 else 32, V, _loaded(plan, V), False, *facts)


def _beside(problem: Any, plan: Plan) -> int:
    """Rows of a thread: as many as lie side by side and aligned, 16 bytes at most, if they leave no lane idle and the
    states of a block 32 KiB."""
    long = [k for k, array in enumerate(problem.arrays) if array.kind == "row"]
    if not long or any(array.kind == "run" for array in problem.arrays):
        return 1
    R = 16 // max(DTYPES[problem.arrays[k].dtype].itemsize for k in long)
    steps = [problem.kept[-1]]
    for k in long:
        kept, reduced = problem.strides[k]
        steps += [s for s, n in zip(kept[:-1], problem.kept[:-1], strict=True) if n > 1]
        steps += [s for s, n in zip(reduced, problem.reduced, strict=True) if n > 1]
    state = max(plan.state(p) for p in range(plan.passes)) * DTYPES[plan.number].itemsize
    while R > 1 and (any(s % R for s in steps) or 32 * R > problem.kept[-1] or state * 256 * R > 32 << 10):
        R //= 2
    return R


def _across_form(problem: Any, plan: Plan) -> Form:
    warps, R = 8 if problem.n >= 32 else 2, _beside(problem, plan)
    return Form(
        True, warps, 1, _loaded(plan, R), False, len(problem.kept), len(problem.reduced), R if R > 1 else 0, False, R
    )


def _chunks(problem: Any, form: Form) -> tuple[int, int]:
    """(how many chunks a row is cut into, elements of one)."""
    least = CHUNK if not form.across else 32 * form.T
    wanted = max(1, BLOCKS // -(-problem.rows // form.rows))
    count = max(1, min(wanted, -(-problem.n // least)), -(-problem.n // (parts.TERMS * form.T)))
    # a multiple of what all threads of a row take in a turn, which packs are whole in
    turn = form.T * form.V * form.K
    length = max(1, -(-problem.n // (min(count, _GRID) * turn))) * turn
    return max(1, -(-problem.n // length)), length


def _reciprocal(size: int) -> tuple[int, int]:
    """As `walk.reciprocal`, the first the int32 of the same bits."""
    factor, shift = reciprocal(max(1, size))
    return factor - (factor >> 31 << 32), shift


class _Arguments:
    """The values of a kernel's first parameters."""

    def __init__(self, problem: Any, plan: Plan, form: Form) -> None:
        self.arrays, self.numbers = plan.arrays, max(1, plan.numbers)
        fixed: list[int] = []
        for which, sizes in enumerate((problem.kept, problem.reduced)):
            fixed += sizes if form.wide else (sizes[0], *(x for size in sizes[1:] for x in (size, *_reciprocal(size))))
            fixed += (s for array in problem.strides for s in array[which])
        self.fixed = (*fixed, problem.rows, problem.n)

    def values(self, *further: Any) -> Callable[..., tuple[Any, ...]]:
        """For a step; a name among `further` is that of a region."""
        count, numbers, fixed = self.arrays, self.numbers, self.fixed

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            pointers = (array.pointer for array in arrays[:count])
            last = (at[each] if each.__class__ is str else each for each in further)
            return (*pointers, *floats[:numbers], *fixed, *last)

        return values


def fused_launcher(problem: Any, form: Form) -> Launcher:
    """One kernel."""
    key = key_of(problem)
    values = _Arguments(problem, plan_of(key), form).values()
    return make_launcher([step(make_fused(key, form), -(-problem.rows // form.rows), values)])


def split_launcher(problem: Any, form: Form) -> Launcher:
    """A kernel for each pass over chunks, and one that combines their states."""
    key = key_of(problem)
    plan = plan_of(key)
    arguments = _Arguments(problem, plan, form)
    count, length = _chunks(problem, form)
    grid = (-(-problem.rows // form.rows), count)
    steps: list[Step] = []

    for p in range(plan.passes):
        steps.append(step(make_part(key, form, p), grid, arguments.values(length, "chunks", "states")))
        if p in plan.reduced:
            blocks = -(-problem.rows // (THREADS // 32))
            steps.append(step(make_combine(key, form, p), blocks, arguments.values(count, "chunks", "states")))
    each = problem.rows * DTYPES[plan.number].itemsize
    most = max(plan.state(p) for p in range(plan.passes))
    return make_launcher(steps, {"states": (plan.place(plan.passes) - 1) * each, "chunks": most * count * each})


def _by_alignment(problem: Any, form: Form, launcher: Callable[[Any, Form], Launcher]) -> Launcher:
    """A launcher that takes packs at once where the arrays of a call allow it, else by single elements."""
    V = form.beside
    if V < 2:
        return launcher(problem, form)
    kinds = ("row",) if form.across else ("row", "along")
    long = [k for k, array in enumerate(problem.arrays) if array.kind in kinds]
    return by_alignment(
        lambda whole: launcher(problem, form._replace(beside=V if whole else 1)),
        {k: V * DTYPES[problem.arrays[k].dtype].itemsize for k in long},
    )


def _too_far(problem: Any) -> str | None:
    far = max((abs(s) for array in problem.strides for part in array for s in part), default=0)
    if max(far, problem.rows, problem.n) >= _LIMIT:
        return "its indices have 32 bits, and a size or a stride has more"
    return None


def _no_room(problem: Any, form: Form) -> str | None:
    """Of the kernels of a pass, and of those that combine chunks with a warp for each row."""
    blocks = -(-problem.rows // min(form.rows, THREADS // 32))
    return "a grid has no room for its rows" if blocks >= 1 << 31 else None


def _seconds(problem: Any, target: Any, form: Form, blocks: int, walks: int) -> float:
    """A launch, and the bytes at the speed that so many blocks reach, of inputs once a walk over a row."""
    plan = plan_of(key_of(problem))
    row = sum(DTYPES[a.dtype].itemsize for a in problem.arrays[plan.results :] if a.kind == "row")
    moved = problem.bytes_moved() + (walks - 1) * row * problem.rows * problem.n
    busy = min(1.0, blocks * form.threads / (1024.0 * target.multiprocessors))
    return float(LAUNCH + moved / (0.8 * target.bandwidth * busy * (0.7 if form.V * form.R == 1 else 1.0)))


def _is_map(problem: Any) -> bool:
    """Whether the pointwise engine has the formula, which is `formulas.maps`' but for those that count elements.

    Others of elements alone, batch norm's, have values of a row that a thread of this engine computes once."""
    return problem.formula.startswith(MAP) and graph_of(problem.formula).is_map and bool(problem.inputs)


MAPPED = "the formula has no reductions: the pointwise engine takes it"


class Elements(Solver):
    """Formulas without reductions by the pointwise engine: packs of elements side by side, tiles of what lies the other
    way, else single ones."""

    name = "elements"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if _is_map(problem) else "the formula has sums, or counts elements, or has values of a row"

    def estimate(self, problem: Any, target: Any) -> float:
        if tiled(problem):
            return seconds(problem.bytes_moved(), target, 0.8)
        apart = _SECTOR if problem.layout == "strided" else 1
        return seconds(apart * problem.bytes_moved(), target, 0.9 if pack_width(problem) > 1 else 0.5)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        return map_launcher(problem, target, pack_width(problem), tiled(problem))


class _Reduce(Solver):
    layout = ""

    def why_not(self, problem: Any, target: Any) -> str | None:
        if _is_map(problem):
            return MAPPED
        if problem.layout != self.layout:
            return f"the arrays lie {problem.layout!r}; it takes {self.layout!r}"
        return _too_far(problem)


class Rows(_Reduce):
    """Contiguous rows: each by a few lanes, a warp or a block, in registers where it has room there."""

    name = "rows"
    layout = "rows"

    def estimate(self, problem: Any, target: Any) -> float:
        plan = plan_of(key_of(problem))
        form = _rows_form(problem, plan, _width(problem, plan))
        return _seconds(problem, target, form, -(-problem.rows // form.rows), 1 if form.held else plan.passes)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.rows == 0:
            return make_launcher(())
        plan = plan_of(key_of(problem))
        return _by_alignment(problem, _rows_form(problem, plan, _width(problem, plan)), fused_launcher)


class Across(_Reduce):
    """Neighbouring rows side by side: a lane for each, and the warps of a block share its elements."""

    name = "across"
    layout = "across"

    def estimate(self, problem: Any, target: Any) -> float:
        plan = plan_of(key_of(problem))
        form = _across_form(problem, plan)
        return _seconds(problem, target, form, -(-problem.rows // form.rows), plan.passes)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.rows == 0:
            return make_launcher(())
        return _by_alignment(problem, _across_form(problem, plan_of(key_of(problem))), fused_launcher)


class Split(_Reduce):
    """Few long rows, in chunks by many blocks; the chunks' states are combined in a fixed order."""

    name = "split"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if _is_map(problem):
            return MAPPED
        return _no_room(problem, self._form(problem, plan_of(key_of(problem))))

    def _form(self, problem: Any, plan: Plan) -> Form:
        wide = _too_far(problem) is not None
        if problem.layout == "across":
            return _across_form(problem, plan)._replace(T=8, wide=wide)
        V = beside = _width(problem, plan)
        if problem.layout == "strided":
            V, beside = 1, 0
        facts = (len(problem.kept), len(problem.reduced), beside, wide)
        return Form(False, THREADS, V, _loaded(plan, V), False, *facts)

    def chunks(self, problem: Any) -> int:
        """How many each row is cut into."""
        return _chunks(problem, self._form(problem, plan_of(key_of(problem))))[0]

    def estimate(self, problem: Any, target: Any) -> float:
        plan = plan_of(key_of(problem))
        form = self._form(problem, plan)
        blocks = -(-problem.rows // form.rows) * self.chunks(problem)
        launches = plan.passes + len(plan.reduced) - 1
        walks = plan.passes * (_SECTOR if problem.layout == "strided" else 1)
        return launches * LAUNCH + _seconds(problem, target, form, blocks, walks)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.rows == 0:
            return make_launcher(())
        return _by_alignment(problem, self._form(problem, plan_of(key_of(problem))), split_launcher)


class Naive(Solver):
    """A warp for each row, through any strides; refuses more rows than a grid has warps only."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if _is_map(problem) else _no_room(problem, self._form(problem))

    def _form(self, problem: Any) -> Form:
        plan = plan_of(key_of(problem))
        return Form(False, 32, 1, _loaded(plan, 1), False, len(problem.kept), len(problem.reduced), 0, True)

    def estimate(self, problem: Any, target: Any) -> float:
        if _is_map(problem):
            return LAUNCH + seconds(_SECTOR * problem.bytes_moved(), target, 0.5)
        form = self._form(problem)
        walks = _SECTOR * plan_of(key_of(problem)).passes
        return _seconds(problem, target, form, -(-problem.rows // form.rows), walks)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if _is_map(problem):
            return map_launcher(problem, target, 1)
        if problem.rows == 0:
            return make_launcher(())
        return fused_launcher(problem, self._form(problem))


SPLIT = Split()
SOLVERS = (Rows(), Across(), SPLIT, Elements(), Naive())
