"""What runs of a network: items in their order, and the segments of them that are one native call each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numbaprims import arrays, settings
from numbaprims.fusion.graph import Graph, Item, Stack
from numbaprims.fusion.joined import JoinedCalls
from numbaprims.fusion.layers import Call, Concat
from numbaprims.fusion.place import Place, Run
from numbaprims.fusion.rearranging import Rearranged
from numbaprims.ops.activation import activation

#: What the items of a program are bound to, and what runs each; None for a concatenation.
Bound = tuple[Place, list[Run | None]]


class Program:
    """Items in their order: where each result is written, and when it is no longer needed."""

    def __init__(
        self, graph: Graph, items: Sequence[Item], *, in_place: bool = True, wanted: Sequence[int] = ()
    ) -> None:
        self.graph, self.items = graph, items
        made = {item.result: item for item in items}
        given = {v for item in items for v in item.inputs if v not in made} or {0}
        self.given = sorted(given, key=lambda v: (v in graph.given, v))
        """Values that it reads and does not compute; first those that have as many images as its result."""
        self.wanted = list(wanted) or [v for v in dict.fromkeys(graph.results) if graph.nodes[v].inputs]
        self.last_use = {v: at for at, item in enumerate(items) for v in item.inputs if v not in self.wanted}
        made = {value: item for value, item in made.items() if not isinstance(item.layer, (Call, Rearranged))}
        self.home: dict[int, tuple[int, Any]] = {}
        """value -> the concatenation that it is written into, and where."""
        self.copies: dict[int, list[tuple[int, Any]]] = {}
        """concatenation -> what is copied into it, and where."""
        concats = [item for item in items if isinstance(item.layer, Concat)]
        for at, item in reversed([*enumerate(concats)]):
            self._place(item, made if in_place else {}, concats[at + 1 :] if in_place else [])
        self.alone = len(items) == 1 and len(items[0].inputs) == 1 and not self.copies
        """Whether one call is all: it checks its own arguments."""
        self.over = {item.result for item in items if in_place and self._overwrites(item, made)}
        """Results that may lie where their input does."""

    def _axis(self, item: Item) -> int:
        """The dimension along which a concatenation joins."""
        return int(item.layer.along(item.shape, self.graph.layout))  # type: ignore[attr-defined]

    def _place(self, item: Item, made: dict[int, Item], later: Sequence[Item]) -> None:
        """Let its branches write where it lies: at the beginning of one that has them and more behind, if there is one,
        as each of a dense block has."""
        axis, at = self._axis(item), 0
        places = []
        for value in item.inputs:
            channels = self.graph.nodes[value].shape[axis]
            places.append((value, (*(slice(None),) * axis, slice(at, at + channels))))
            at += channels
        copied = self.copies[item.result] = list[tuple[int, Any]]()
        first = (each for each in later if axis == 1 == self._axis(each) and each.inputs[: len(places)] == item.inputs)
        whole = next(first, None)
        if whole is not None and item.result not in self.wanted:
            self.home[item.result] = whole.result, (slice(None), slice(at))
            behind = self.copies[whole.result]
            # what it would copy there is copied before this is read
            copied += [place for place in places if place in behind]
            behind[:] = [place for place in behind if place not in copied]
            return
        for value, cut in places:
            # what others get is an array of its own, not a part of one
            if value in made and value not in self.home and value not in self.wanted:
                self.home[value] = item.result, cut
            else:
                copied.append((value, cut))

    def _overwrites(self, item: Item, made: dict[int, Item]) -> bool:
        source = item.inputs[0]
        # a concatenation's array holds the values of its branches, which others may still read
        alone = self.graph.readers[source] == 1 and source in made and source not in self.copies
        return isinstance(item, Stack) and not item.windows and alone and len(item.shape) == 4

    def run(self, bound: Bound, given: Sequence[Any], out: Any) -> Iterator[tuple[Item, Any]]:
        """Each item with its result, one after another."""
        place, runs = bound
        last, values, buffers = self.graph.last, dict(zip(self.given, given, strict=True)), dict[int, Any]()
        images = given[0].shape[0]
        pieced = getattr(settings.current().trial, "pieced", None)

        def room(value: int) -> Any:
            """Where a value has to be written; None: anywhere."""
            if value == last and out is not None:
                return out
            if value in self.home:
                parent, cut = self.home[value]
                return buffer(parent)[cut]
            return None

        def buffer(value: int) -> Any:
            """The array of a concatenation."""
            if value not in buffers:
                shape = images, *self.graph.nodes[value].shape[1:]
                target = room(value)
                if target is None:
                    target, storage = place.library.empty(shape, place.dtype)
                    if pieced is not None:
                        pieced.append(storage)
                buffers[value] = target
            return buffers[value]

        for at, (item, run) in enumerate(zip(self.items, runs, strict=True)):
            result = item.result
            read = [values[v] for v in item.inputs]
            if run is None:
                y = buffer(result)
                for value, cut in self.copies[result]:
                    activation(values[value], "identity", out=y[cut])
            else:
                target = room(result)
                y = run(*read, out=read[0] if target is None and result in self.over else target)
            values[result] = y
            del read
            for value in item.inputs:
                if self.last_use.get(value) == at:
                    values.pop(value, None)
            yield item, y

    def results(self, bound: Bound, given: Sequence[Any], out: Any) -> list[Any]:
        """The values that are wanted."""
        if self.alone:
            return [bound[1][0](*given, out=out)]  # type: ignore[misc]
        found = {item.result: y for item, y in self.run(bound, given, out) if item.result in self.wanted}
        return [found[value] for value in self.wanted]

    def bind(self, place: Place) -> Bound:
        return place, [None if isinstance(item.layer, Concat) else item.bind(place) for item in self.items]


class Segment:
    """Items of a network that run together: a function that is not known alone, the others as one native call."""

    def __init__(self, network: Any, at: int, program: Program, later: set[int]) -> None:
        self.program = program
        first = program.items[0].layer
        self.joins = len(program.items) > 1 or not (isinstance(first, Call) or first.views)
        self._drops = set(program.given) - later
        """Values that nobody reads behind it."""
        self._network, self._items = network, slice(at, at + len(program.items))
        self.joined = JoinedCalls(self._apart, later=True)

    def _apart(self, x: Any, out: Any, live: Sequence[Any]) -> Any:
        place, runs = self._network.bound(arrays.enter(x, "x")[2])
        found = self.program.results((place, runs[self._items]), (x, *live), out)
        return found[0] if len(found) == 1 else tuple(found)

    def run(self, values: dict[int, Any], out: Any, target: Any) -> None:
        """Add to the values of a network what is computed of them; `target` is the storage of `out`."""
        x, *live = (values[value] for value in self.program.given)
        found = self.joined.again((x, *live), out) if self.joins else self._apart(x, out, live)
        if found is None:
            found = self.joined(x, arrays.enter(x, "x"), out, target, live)
        wanted = self.program.wanted
        for value in self._drops:
            del values[value]
        values.update(zip(wanted, (found,) if len(wanted) == 1 else found, strict=True))


def segments(network: Any, graph: Graph, items: Sequence[Item]) -> list[Segment]:
    """The items cut before and behind functions that are not known."""
    cuts, found = [0], list[Segment]()
    by_itself = {v for item in items if isinstance(item.layer, Call) for v in item.inputs} | {*graph.results}
    for at, item in enumerate(items):
        # what Python is given of another result's memory is no result of a native call
        if isinstance(item.layer, Call) or (item.layer.views and item.result in by_itself):
            cuts += [at, at + 1]
    cuts = sorted({*cuts, len(items)})
    for first, end in zip(cuts, cuts[1:], strict=False):
        later = {v for item in items[end:] for v in item.inputs} | {*graph.results}
        wanted = [item.result for item in items[first:end] if item.result in later]
        if wanted:
            found.append(Segment(network, first, Program(graph, items[first:end], wanted=wanted), later))
    return found
