"""`fuse`: a network of layers as few calls, planned once and run many times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, settings
from numbaprims.arrays import NUMPY
from numbaprims.dtypes import DTYPES, FLOATS, LONG_NAMES
from numbaprims.fusion.depthwise import Joiner
from numbaprims.fusion.graph import Analyser, Graph, Item, Stack, one_by_one
from numbaprims.fusion.layers import Concat, Reshape
from numbaprims.fusion.place import Place
from numbaprims.fusion.segments import Bound, Program, segments
from numbaprims.ops.activation import activation
from numbaprims.ops.plans import Plan
from numbaprims.reference.convert import to_float64
from numbaprims.shapes import per_dimension, sizes_of

#: strategy -> steps of a sequence at most, bytes of cache that it may take (0: what the machine has, -1: any)
STRATEGIES = {"auto": (0, 0), "one": (1, 0), "five": (5, 0), "unrestricted": (0, -1)}


class FusedNetwork(Plan):
    """``net(x, *given)``: the layers one after another, stacks of them depth first.  `fuse` makes it.

    It may be called from several threads, pickles its layers, and maps over batches (`map`).
    """

    def __init__(self, layers: Any, input_shape: Sequence[int], options: dict[str, Any]) -> None:
        self.shape = sizes_of(input_shape, "input_shape")
        self._arguments = layers, self.shape, options
        self._dtype = arrays.dtype_name(options["dtype"], "dtype")
        self.layout, strategy, limit = options["layout"], options["strategy"], options["limit"]
        if self._dtype not in FLOATS:
            words = ", ".join(LONG_NAMES[each] for each in FLOATS)
            raise TypeError(f"dtype is {options['dtype']!r}; fuse takes {words}")
        if not 2 <= len(self.shape) <= 5:
            raise ValueError(f"input_shape is {self.shape}; it must be (N, C) and up to three dimensions more")
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout is {self.layout!r}; it must be 'NCHW' or 'NHWC'")
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is {strategy!r}; it must be one of {', '.join(map(repr, STRATEGIES))}")
        most, cache = STRATEGIES[strategy]
        if limit is not None:
            cache = per_dimension(limit, 1, "limit", 0)[0]
        self._graph = Graph(layers, self.shape, self.layout)
        analyser = Analyser(self._graph, self._dtype, most, cache, bool(options["exact"]))
        Joiner(self._graph, analyser.place, analyser.by_result, most, cache)
        self._fused = Program(self._graph, analyser.items)
        self._single = Program(self._graph, one_by_one(self._graph), in_place=False)
        self._bound: dict[Any, Bound] = {}
        self._segments = segments(self, self._graph, analyser.items)
        graph, self._again = self._graph, None
        if len(self._segments) == 1 and self._segments[0].joins:
            program = self._segments[0].program
            if (program.given, program.wanted) == ([0, *graph.given], graph.results):
                self._again = self._segments[0].joined.again
        """Of a network that is one native call, what answers a call that repeats."""

    @property
    def stacks(self) -> list[Stack]:
        """The stacks, each with its `layers`, `operations`, `steps` and `parameters`."""
        return [item for item in self._fused.items if isinstance(item, Stack)]

    @property
    def dtype(self) -> str:
        return LONG_NAMES[self._dtype]

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self._graph.nodes[self._graph.last].shape

    def __call__(self, x: Any, *given: Any, out: Any = None) -> Any:
        """Run the network.

        Args:
            x: of the plan's shape, with any number of images, and of its dtype; of any library, on any device.
            given: an array for each `Given`, in their order, of x's library.
            out: where the result goes.  It may share no memory with x, unless the network is one stack without windows.

        Returns:
            An array of x's library; a tuple of them where the network has several results.

        Raises:
            TypeError, ValueError: x, out or what is given of another shape or dtype; `out` of several results.
        """
        found = self._again and self._again((x, *given), out)
        return self._run(None, x, given, out) if found is None else found

    def layer_by_layer(self, x: Any, *given: Any, out: Any = None) -> Any:
        """The same layers, each by its own public function: what fusing is compared with."""
        return self._run(self._single, x, given, out)

    def run_reference(self, x: Any, *given: Any, trace: bool = False) -> np.ndarray:
        """The network by its definition, in float64.

        Args:
            x: of the plan's shape, with any number of images; on the host.
            given: an array for each `Given`.
            trace: print a line for every layer.

        Returns:
            A float64 array: the last result.
        """
        found = to_float64(*self._entered(x, given)[:2])
        for value, y in self._walk(x, given):
            if trace:
                least, most = (
                    f(y, axis=None, initial=math.nan) for f in (np.fmin.reduce, np.fmax.reduce)
                )  # not of NaN
                print(f"{self._graph.nodes[value]}: {y.shape}, {least:.6g} to {most:.6g}")
            found = y if value == self._graph.last else found
        return found

    def walk(self, x: Any, *given: Any) -> Iterator[tuple[str, np.ndarray]]:
        """Step through the network: (layer in words, its result by the definition in float64), one after another."""
        return ((str(self._graph.nodes[value]), y) for value, y in self._walk(x, given))

    def _walk(self, x: Any, given: Sequence[Any]) -> Iterator[tuple[int, np.ndarray]]:
        view, dtype, library = self._entered(x, given)
        if library.device != "cpu":
            raise TypeError(f"x is a {arrays.describe(x)} on {library.device}; the definition runs on the host")
        bound = self._single.bind(Place("f64", NUMPY, self.layout))
        values = {0: to_float64(view, dtype)}
        for value, each in self._by_value(given):
            view, dtype, _ = arrays.enter(each, "given")
            values[value] = to_float64(view, dtype) if dtype in FLOATS else each
        steps = self._single.run(bound, [values[v] for v in self._single.given], None)
        while True:
            with settings.config(device="reference"):
                found = next(steps, None)
            if found is None:
                return
            yield found[0].result, found[1]

    # ---------------------------------------------------------------- the parts of a call

    def _by_value(self, given: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The number of the value that each array is."""
        if len(given) != len(self._graph.given):
            raise TypeError(f"{len(given)} arrays are given beside x; this plan takes {len(self._graph.given)}")
        return zip(self._graph.given, given, strict=True)

    def _entered(self, x: Any, given: Sequence[Any] = ()) -> tuple[Any, str, Any]:
        view, dtype, library = arrays.enter(x, "x")
        for value, each in self._by_value(given):
            node, shape = self._graph.nodes[value], arrays.enter(each, "given")[0].shape
            if len(shape) != len(node.shape) or shape[1:] != node.shape[1:]:
                raise ValueError(f"layers{node.path} is a {arrays.describe(each)}; this plan takes {node.shape} there")
        if view.ndim != len(self.shape) or view.shape[1:] != self.shape[1:]:
            raise ValueError(f"x is a {arrays.describe(x)}; this plan takes {self.shape}, with any number of images")
        if dtype != self._dtype:
            raise TypeError(f"x is a {arrays.describe(x)}; this plan takes {self.dtype}")
        return view, dtype, library

    def bound(self, library: Any, program: Program | None = None) -> Bound:
        """What runs the items for a library's arrays."""
        program = program or self._fused
        found = self._bound.get((program, library))
        if found is None:
            found = self._bound[program, library] = program.bind(Place(self._dtype, library, self.layout))
        return found

    def _run(self, program: Program | None, x: Any, given: Sequence[Any], out: Any) -> Any:
        """A program item by item; without one the network by its segments."""
        view, dtype, library = self._entered(x, given)
        results, target = self._graph.results, None
        if out is not None and len(results) > 1:
            raise TypeError(f"the network has {len(results)} results; out is for one")
        if results == [0]:  # a network that changes nothing gives a copy, as all functions do
            return activation(x, "identity", out=out)
        if out is not None:
            target = arrays.check_out(out, (view.shape[0], *self.output_shape[1:]), dtype, library=library)
            if not (program or self._fused).alone:  # one call checks its own arguments
                arrays.check_overlap(target, [(view, "x", False)])
        values = {0: x, **dict(self._by_value(given))}
        if program is not None:
            read = [values[v] for v in program.given]
            values |= dict(zip(program.wanted, program.results(self.bound(library, program), read, out), strict=True))
        else:
            for segment in self._segments:
                segment.run(values, *(out, target) if results[-1] in segment.program.wanted else (None, None))
        found = tuple(values[v] for v in results)
        return found[0] if len(found) == 1 else found

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedNetwork, self._arguments

    def __repr__(self) -> str:
        return f"<fused network, x {self.shape} {self.dtype}, {len(self._fused.items)} calls>"

    # ---------------------------------------------------------------- in words

    def _bytes(self, program: Program) -> float:
        """What the items read and write of values; sequences of a stack lie in a cache."""
        nodes, item = self._graph.nodes, DTYPES[self._dtype].itemsize
        total = 0.0
        for each in program.items:
            if isinstance(each.layer, Concat):
                total += 2 * sum(math.prod(nodes[v].shape) for v, _ in program.copies[each.result])
                continue
            if self._is_view(each):
                continue
            total += sum(math.prod(nodes[v].shape) for v in (*each.inputs, each.result))
            if isinstance(each, Stack) and each.most:
                behind = [each.values[k - 1] for k in itertools.accumulate(len(step.operations) for step in each.steps)]
                total += 2 * sum(math.prod(nodes[v].shape) for v in behind[each.most - 1 : -1 : each.most])
        return total * item

    def launches(self, program: Program) -> int:
        return sum(len(program.copies.get(item.result, [0])) for item in program.items if not self._is_view(item))

    def _is_view(self, item: Item) -> bool:
        """Whether an item launches nothing: of what is no view of another value all elements lie in their order."""
        return item.layer.views or (
            isinstance(item.layer, Reshape) and not self._graph.nodes[item.inputs[0]].layer.views
        )

    def explain(self) -> str:
        """The plan in words: what runs together, what could not join and why, bytes and launches saved."""
        nodes, program = self._graph.nodes, self._fused
        calls, single = self.launches(program), self.launches(self._single)
        moved, moved_single = (self._bytes(each) / (1 << 20) for each in (program, self._single))
        lines = [
            f"fused network: x {self.shape} {self.dtype} {self.layout}, layers: {len(nodes) - 1}",
            f"launches: {calls}, layer by layer {single}",
            f"MiB moved: {moved:.2f}, layer by layer {moved_single:.2f} (where caches hold every sequence)",
        ]
        for number, item in enumerate(program.items, 1):
            copied = len(program.copies.get(item.result, ()))
            lines.append(f"{number}. {item.words}" + f", {copied} of {len(item.inputs)} are copied" * bool(copied))
            for value in item.nodes:
                lines.append(f"   {nodes[value]}{item.how(value)} -> {nodes[value].shape}")
        return "\n".join(lines)

    __str__ = explain


def fuse(
    layers: Any, input_shape: Sequence[int], *, dtype: Any = "float32", layout: str = "NCHW", strategy: str = "auto",
    limit: int | None = None, exact: bool = False,
) -> FusedNetwork:  # fmt: skip
    """Plan a network once, so that stacks of element-wise layers and pooling run depth first: ``net(x)``.

    Consecutive layers that work on each element or window become one call of `numbaprims.stack`, in which a part of an
    image goes through all of them before the next. Batch norm, bias and scale behind a convolution or a dense layer
    fold into its weights, an activation into its epilogue; a residual sum joins a stack; branches of a concatenation
    write into their places.

    Args:
        layers: descriptions of `numbaprims.fusion.layers`; a list is a sequence, `Residual` and `Concat` hold lists.
        input_shape: (N, C, H, W), or (N, H, W, C); other numbers of images may be given later. Arrays of other ranks
            have no pooling in stacks.
        dtype: float64, float32, float16 or bfloat16.
        layout: "NCHW", or "NHWC" for channels behind the other dimensions.
        strategy: how steps (one pooling at most) form sequences, whose results go to memory: "one" step each, "five" at
            most, "unrestricted", or "auto": what the caches hold and what pays.
        limit: bytes of cache that a sequence may take; None for what the strategy says.
        exact: leave batch norm, bias and scale behind products as they are, instead of folding them into weights.

    Returns:
        A `FusedNetwork`: ``net(x, out=None)``, ``net.explain()``, ``net.stacks``, ``net.layer_by_layer(x)``,
        ``net.run_reference(x, trace=True)``, ``net.map(batches)``; it pickles.

    Raises:
        TypeError: what is no layer, another dtype.
        ValueError: a layer that its input does not fit, with its place; an unknown layout or strategy.

    Example:
        >>> import numpy as np, numbaprims
        >>> from numbaprims.fusion.layers import Activation, MaxPool, Scale
        >>> net = numbaprims.fuse([MaxPool(2), Scale(-1.0), Activation("relu")], (1, 1, 2, 4))
        >>> net(np.float32([[[[1, 2, -3, -4], [3, 4, -5, -6]]]]))
        array([[[[0., 3.]]]], dtype=float32)
        >>> [len(stack.steps) for stack in net.stacks]
        [1]

    References:
        Weber et al., BrainSlug: Transparent Acceleration of Deep Learning Through Depth-First Parallelism, 2018.
    """
    options = {"dtype": dtype, "layout": layout, "strategy": strategy, "limit": limit, "exact": exact}
    return FusedNetwork(layers, input_shape, options)
