"""Small calls that repeat: the tables of `cpu/known_table.py`, by the kind of call and `Settings.calls`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from numpy import ndarray

from numbaprims import arrays, forks, settings
from numbaprims.dispatch import fast_path, registry
from numbaprims.dispatch.call import Bound, remember

# Keys of one stem; each is a table of some records.
CAPACITY = 256


#: Arrays of a launch that have places of their own.
_FEW = 7
#: Records of one launcher on a GPU.
MOST_KNOWN = 32


class KnownCalls:
    """`get(key)` is None or (call, words, table): ``call(words, out, operands, numbers)`` is None if it does not know
    the call, and what `launched` takes if that has to run it; else the result, or the tuple of them.

    Fixed are the types, dtypes, shapes, strides and flags of the arrays, and which of them are the same memory.
    """

    def __init__(self) -> None:
        self._tables: dict[Any, tuple[Callable[..., Any], Any, Any]] = {}
        self._lock = forks.lock()
        self.get = self._tables.get  # a bare dict lookup: reads need no lock
        self.again = self._again()
        remember(self)

    def _again(self) -> Callable[..., Any]:
        """``again(operands, out, numbers)`` of a plan, whose keys are `Settings.calls`: what the call gives, or None
        where it is not known.  Names of a function around it take half as long as attributes."""
        known_of, override, current = self.get, settings._lookup, settings.current

        def again(given, out=None, numbers=()):  # type: ignore[no-untyped-def]
            known = known_of((settings._default if override() is None else current()).calls)
            if known is None:
                return None
            call, words, table = known
            found = call(words, out, given, numbers)
            return found if type(found) is not tuple else launched(table, found, given, numbers)

        return again

    def prepare(self) -> Any:
        """Compile what answers repeated calls, and give `known_call`: without the lock, for which a thread that
        compiles may wait; and at the first call of a kind, where only the second leaves a record."""
        known = importlib.import_module("numbaprims.cpu.known")
        _ = known.known_result().address
        fast_path.arm()
        return known.known_call()

    def add(
        self,
        key: Any,
        bound: Bound,
        operands: Sequence[tuple[int, Any]],
        results: int,
        made: bool,
        numbers: tuple[float, ...] = (),
    ) -> None:
        """Remember a checked call: (slot, array) of its arrays, the results first.  Once for each key and `bound`.

        `made` says that the first result was made by the call; it then also fits where the caller gives such a one.
        """
        kind = type(operands[0][1])
        notes = fast_path.notes_of(key)
        if notes is not None:
            key = (key[0], notes.calls)
        again = (key, made, kind) in bound.known
        if again and notes is None:
            return
        if made and any(x is not None and arrays.is_large(x.nbytes) for _, x in operands[:results]):
            return
        known = importlib.import_module("numbaprims.cpu.known_table")
        seen = [None if x is None else known.look_at(x) for _, x in operands]
        if any(x is not None and each is None for (_, x), each in zip(operands, seen, strict=True)):
            return  # what is unaligned was copied, and the copy lies otherwise
        slots = [slot for slot, x in operands]
        record = known.make_record(bound.launch, results, made, [*zip(slots, seen, strict=True)])
        bound.known.add((key, made, kind))
        if record is not None and notes is not None:
            keep = bound, [(each.new, each.view) for each in seen if each is not None]
            notes.records.append((record, keep, [x for _, x in operands], results, made, numbers))
        if record is not None and not again:
            self._keep(key, record, bound, slots, seen)

    def add_on_device(
        self,
        key: Any,
        bound: Bound,
        operands: Sequence[tuple[int, Any, Any]],
        dtypes: Sequence[str],
        made: bool,
        numbers: tuple[float, ...],
    ) -> None:
        """The same of arrays in the memory of a GPU: (slot, array, its view), the results with their `dtypes` first.
        Once for each key and `bound`, and for where the arrays begin; `numbers` are those of the call."""
        if getattr(bound.launch, "program", None) is None or len(bound.known) >= MOST_KNOWN or fast_path.notes_of(key):
            return
        slots, given, views = zip(*operands, strict=True)
        library = views[0].origin
        kind = (library, tuple([None if view is None else view.begin for view in views]), numbers)
        if (key, made, kind) in bound.known:
            return
        bound.known.add((key, made, kind))
        recorded = registry.recorded(bound.launch, _by_slot([*zip(slots, views, strict=True)]), numbers)
        if recorded is None:
            return
        known = importlib.import_module("numbaprims.cpu.known_devices")
        makers: list[Any] = [
            library.maker(view.shape, view.strides, dtype) for view, dtype in zip(views, dtypes, strict=False)
        ]
        makers += [None] * (len(views) - len(makers))
        seen = [
            None if x is None else known.look_at_device(x, view, maker)
            for x, view, maker in zip(given, views, makers, strict=True)
        ]
        ask = library.asks()
        lend = library.lender(recorded.scratch) if recorded.scratch else None
        launches = known.launched_words(recorded, numbers, 0 if ask else library.stream(), ask, lend)
        if launches is None or any(x is not None and each is None for x, each in zip(given, seen, strict=True)):
            return
        record = importlib.import_module("numbaprims.cpu.known_table").make_device_record(
            launches, len(dtypes), made, [*zip(slots, seen, strict=True)]
        )
        if record is not None:
            self._keep(key, record, bound, slots, seen, launches, ask, lend)

    def _keep(self, key: Any, record: Any, bound: Bound, slots: Sequence[int], seen: Sequence[Any], *more: Any) -> None:
        """Put a record into the table of a key, with all that has to stay alive."""
        known = importlib.import_module("numbaprims.cpu.known_table")
        known_call = self.prepare()
        order = _by_slot([*zip(slots, range(len(slots)), strict=True)], -1)
        keep = (bound, itemgetter(*order), [(each.new, each.view) for each in seen if each is not None], more)
        with self._lock:
            found = self._tables.get(key)
            table = (found[2] if found else known.Table()).with_record(record, keep)
            self._tables[key] = (known_call, table.words, table)
            while len(self._tables) > CAPACITY:
                del self._tables[next(iter(self._tables))]

    def add_plan(
        self,
        key: Any,
        bound: Bound,
        launched: Sequence[Any],
        numbers: Sequence[float],
        arrays: Sequence[Any],
        made: bool,
        views: Sequence[Any] | None = None,
    ) -> None:
        """Remember a call of a plan: of its `arrays`, the result first, whose `views` are given on a GPU.  Its launches
        take `launched`: each is the number of one of those, None, or an array that is always the same, as `numbers`
        are."""
        if bound.extra is None:
            with_constants = registry.joining().with_constants if views is None else _with_constants
            launch = with_constants(bound.launch, launched, numbers)
            bound.extra = Bound(launch, bound.problem, bound.solver, bound.config, bound.rule, bound.shape, bound.dtype)
        if views is None:
            self.add(key, bound.extra, list(enumerate(arrays)), 1, made)
        else:
            operands = [*zip(range(len(arrays)), arrays, views, strict=True)]
            self.add_on_device(key, bound.extra, operands, (bound.dtype,), made, ())

    def clear(self) -> None:
        """Forget every call; one that runs just now keeps its table."""
        with self._lock:
            self._tables.clear()


def _with_constants(launch: Any, given: Sequence[Any], numbers: Sequence[float]) -> Any:
    """A launcher of a GPU's of fewer arrays, as `cpu.joined.with_constants` makes one of the host's."""
    floats = {f"f{at}": number for at, number in enumerate(numbers)}

    def known(*arrays: Any) -> None:
        launch(*[arrays[each] if type(each) is int else each for each in given], **floats)

    known.program = getattr(launch, "program", None)  # type: ignore[attr-defined]
    return known


def _by_slot(operands: Sequence[tuple[int, Any]], none: Any = None) -> list[Any]:
    """What stands in each place of a launch."""
    placed = dict(operands)
    return [placed.get(slot, none) for slot in range(max(_FEW, *(slot + 1 for slot, _ in operands)))]


def launched(table: Any, found: Any, given: Sequence[Any], numbers: tuple[float, ...]) -> Any:
    """What a known call gives: of a program that native code does not run, after its launch."""
    if type(found) is not tuple or type(found[0]) is not int:
        return found
    number, *made = found
    bound, order, *_ = table.records[number][1]
    operands = order((*made, *given, None))
    if type(made[0]) is not ndarray:
        operands = tuple(x if x is None else arrays.enter(x, "array")[0] for x in operands)
    if len(operands) == _FEW:
        bound.launch(*operands, *numbers)
    else:
        bound.launch(*operands[:_FEW], *numbers, more=operands[_FEW:])
    return made[0] if len(made) == 1 else tuple(made)
