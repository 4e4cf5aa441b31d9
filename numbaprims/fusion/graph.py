"""The graph of a network, and what of it runs together: stacks, products with what folds into them, and the rest.

The analyser walks the nodes in topological order (Weber et al., BrainSlug, 2018, section 3.2).  An element-wise layer
or a pooling joins the stack that produces what it reads, if nothing else reads that; so a stack is a chain of nodes,
and whatever leaves it leaves it at its end.  A sum joins the stack that produces its later operand, and the other one
is an array that this stack adds.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from numbaprims import settings
from numbaprims.arrays import NUMPY, enter
from numbaprims.fusion import layers as known
from numbaprims.fusion.layers import Concat, Layer
from numbaprims.fusion.place import Place, Run, Shape, channel_axis, pack, run_operations
from numbaprims.ops.stack import MOST_ADDED
from numbaprims.stacks.operations import Operation, Step, Window, steps_of


class Node(NamedTuple):
    """A layer of a network and the values that it reads; its own value has its index, 0 is the network's input.
    What it is called with beside that reads nothing."""

    layer: Layer
    inputs: tuple[int, ...]
    shape: Shape
    """Of its result."""
    path: str
    """Where it stands: "[2].body[0]"."""

    def __str__(self) -> str:
        return f"{self.path} {self.layer!r}".lstrip()


class Graph:
    """The nodes of nested descriptions, in topological order, and the values that the network gives."""

    def __init__(self, layers: Any, shape: Shape, layout: str) -> None:
        self.layout = layout
        self.nodes = [Node(Layer(), (), shape, "x")]
        self.results: list[int] = []
        last = self._build(layers, 0, "")
        self.results = [self._own(value) for value in self.results or [last]]
        self.last = self.results[-1]
        self.given = [value for value, node in enumerate(self.nodes) if value and not node.inputs]
        """What it is called with beside its input."""

    def _own(self, value: int) -> int:
        """A result, or a copy of values that are known."""
        node = self.nodes[value]
        known_values = isinstance(node.layer, known.Constant)
        return self._node(known.Activation("identity"), (value,), node.path) if known_values else value

    @property
    def readers(self) -> Counter[int]:
        """How many nodes read each value; who calls the network reads its results."""
        return Counter([*self.results, *(v for node in self.nodes for v in node.inputs)])

    def _build(self, layer: Any, value: int, path: str) -> int:
        if isinstance(layer, (tuple, list)):
            for index, each in enumerate(layer):
                value = self._build(each, value, f"{path}[{index}]")
            return value
        if not isinstance(layer, Layer):
            raise TypeError(
                f"layers{path} is {layer!r}; it must be a layer of numbaprims.fusion.layers, or a list of them"
            )
        if layer.passes:
            return value
        if isinstance(layer, known.Wired):
            values = [value]
            for index, (each, reads) in enumerate(layer.steps):
                sources = tuple(values[at] for at in reads)
                where = f"{path}[{index}]"
                if isinstance(each, known.Given):
                    self.nodes.append(Node(each, (), each.shape, where))
                    values.append(len(self.nodes) - 1)
                elif isinstance(each, Concat):
                    pairs = enumerate(zip(each.branches, sources, strict=True))
                    values.append(
                        self._node(each, tuple(self._build(b, v, f"{where}[{k}]") for k, (b, v) in pairs), where)
                    )
                elif getattr(each, "reads", 1) == 1:
                    values.append(self._build(each, sources[0], where))
                else:
                    values.append(self._node(each, sources, where))
            if layer.results is not None:
                if path:
                    raise ValueError(f"layers{path} gives several results, which the whole network alone can")
                self.results = [values[at] for at in layer.results]
            return values[-1]
        inputs: tuple[int, ...] = (value,)
        if isinstance(layer, known.Residual):
            shortcut = self._build(layer.shortcut, value, f"{path}.shortcut")
            inputs = self._build(layer.body, value, f"{path}.body"), shortcut
            layer = known.Add()
        elif isinstance(layer, Concat):
            inputs = tuple(self._build(each, value, f"{path}[{k}]") for k, each in enumerate(layer.branches))
        return self._node(layer, inputs, path)

    def _node(self, layer: Layer, inputs: tuple[int, ...], path: str) -> int:
        try:
            shape = self._shape(layer, [self.nodes[v].shape for v in inputs])
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"layers{path}, {layer!r} of an input {self.nodes[inputs[0]].shape}: {error}") from error
        self.nodes.append(Node(layer, inputs, shape, path))
        return len(self.nodes) - 1

    def _shape(self, layer: Layer, inputs: list[Shape]) -> Shape:
        """The shape of a layer's result, which its own function finds for no images."""
        first = inputs[0]
        if isinstance(layer, known.Add):
            if inputs[1] != first:
                raise ValueError(f"the body gives {first} and the shortcut {inputs[1]}; they must have one shape")
            return first
        if isinstance(layer, known.Multiply):
            return np.broadcast_shapes(*inputs)
        if isinstance(layer, Concat):
            axis = layer.along(first, self.layout)
            rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
            if len(rest) > 1:
                raise ValueError(
                    f"branches give {', '.join(map(str, inputs))}; they may differ along dimension {axis} only"
                )
            return (*first[:axis], sum(shape[axis] for shape in inputs), *first[axis + 1 :])
        place = Place("f32", NUMPY, self.layout)
        if isinstance(layer, known.Call):
            if layer.shape is not None:
                return (self.nodes[0].shape[0], *layer.shape)
            found = layer.bind(first, place)(np.zeros(first, np.float32))
            return tuple(enter(found, "the function's result")[0].shape)
        with settings.config(device="reference"):
            found = layer.bind(first, place)(*(np.empty((0, *each[1:]), np.float32) for each in inputs))
        return (first[0], *found.shape[1:])


# ---------------------------------------------------------------- what runs together


@dataclasses.dataclass(eq=False)
class Item:
    """What is computed by one call: a node."""

    nodes: list[int]
    inputs: list[int]
    shape: Shape
    """Of its input."""
    layer: Layer
    why: str
    """Why it begins here."""

    @property
    def result(self) -> int:
        return self.nodes[-1]

    @property
    def words(self) -> str:
        return f"{type(self.layer).__name__}; {self.why}"

    def how(self, value: int) -> str:
        """What became of a node, in words."""
        return ""

    def bind(self, place: Place) -> Run:
        return self.layer.bind(self.shape, place)


FOLDED = ", folded into its weights, which are rounded once more (exact=True does not)"


@dataclasses.dataclass(eq=False)
class Product(Item):
    """A convolution, a dense layer or a norm, with what has folded into it."""

    folded: list[int] = dataclasses.field(default_factory=list)
    """Nodes that are in its weights."""

    def how(self, value: int) -> str:
        if value in self.folded:
            return FOLDED
        return "" if value == self.nodes[0] else ", in its epilogue"


@dataclasses.dataclass(eq=False)
class Stack(Item):
    """Consecutive element-wise layers and pooling, which run depth first."""

    layers: list[Layer] = dataclasses.field(default_factory=list)
    operations: tuple[Operation, ...] = ()
    parameters: np.ndarray | None = None
    """(C, numbers), those of all operations in their order, in the type that is computed in."""
    most: int = 0
    limit: int = 0
    values: list[int] = dataclasses.field(default_factory=list)
    """The node of each operation."""
    folded: list[int] = dataclasses.field(default_factory=list)
    """Nodes that are in the weights of a depthwise window."""

    @property
    def words(self) -> str:
        counted = f"stack of operations: {len(self.operations)}, steps: {len(self.steps)}"
        return f"{counted}; it begins here, since {self.why}"

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.operations)

    @property
    def windows(self) -> bool:
        return any(isinstance(each, Window) for each in self.operations)

    def append(
        self, value: int, layer: Layer, operation: Operation, numbers: np.ndarray | None, more: list[int]
    ) -> None:
        self.nodes.append(value)
        self.values.append(value)
        self.layers.append(layer)
        self.inputs += more
        self.operations += (operation,)
        if numbers is not None:
            old = [] if self.parameters is None else [self.parameters]
            self.parameters = np.concatenate([*old, numbers], axis=1)

    def how(self, value: int) -> str:
        return FOLDED if value in self.folded else ""

    def bind(self, place: Place) -> Run:
        if len(self.layers) == 1 and self.layers[0].own:  # which has nothing to share a pass with, and costs less
            return self.layers[0].bind(self.shape, place)
        words = {"most": self.most, "limit": self.limit}
        return run_operations(self.operations, self.parameters, self.shape, place, **words)


def one_by_one(graph: Graph) -> list[Item]:
    """Every node by itself."""
    return [
        Item([value], list(node.inputs), graph.nodes[node.inputs[0]].shape, node.layer, "")
        for value, node in enumerate(graph.nodes)
        if node.inputs
    ]


class Analyser:
    """Walks a graph and collects items."""

    def __init__(self, graph: Graph, dtype: str, most: int, limit: int, exact: bool) -> None:
        self.graph, self.readers = graph, graph.readers
        self.place = Place(dtype, NUMPY, graph.layout)
        self.most, self.limit, self.exact = most, limit, exact
        self.by_result: dict[int, Item] = {}
        for value, node in enumerate(graph.nodes):
            if node.inputs:
                self._visit(value)

    @property
    def items(self) -> list[Item]:
        """In an order in which they can run: what an item reads was computed before its last node."""
        return [self.by_result[value] for value in sorted(self.by_result)]

    def _visit(self, value: int) -> None:
        node = self.graph.nodes[value]
        shape = self.graph.nodes[node.inputs[0]].shape
        if not isinstance(node.layer, known.Add) and self._fold(value, node):
            return
        found = node.layer.operation(shape, self.place)
        if isinstance(found, str):
            kind = Product if node.layer.takes_activation else Item
            self.by_result[value] = kind([value], list(node.inputs), shape, node.layer, found)
            return
        operation, columns = found
        numbers = pack(columns, shape, self.place)
        # the later operand's stack first: the other operand is there by then
        order = sorted(node.inputs, reverse=True)
        reasons = []
        for source in order:
            more = list(node.inputs)
            more.remove(source)
            refusal = self._refuses(source, len(more))
            if refusal is None:
                stack = self.by_result.pop(source)
                assert isinstance(stack, Stack)
                stack.append(value, node.layer, operation, numbers, more)
                self.by_result[value] = stack
                return
            reasons.append(refusal)
        stack = Stack([], order[:1], shape, node.layer, reasons[0], most=self.most, limit=self.limit)
        stack.append(value, node.layer, operation, numbers, order[1:])
        self.by_result[value] = stack

    def _refuses(self, source: int, added: int) -> str | None:
        """Why a node cannot join the stack that produces a value, if it cannot."""
        item, node = self.by_result.get(source), self.graph.nodes[source]
        if not node.inputs:
            return "it reads the network's input"
        if not isinstance(item, Stack):
            return f"what it reads is computed by {node}"
        if self.readers[source] > 1:
            return f"the result of {node} is read {self.readers[source]} times"
        if len(item.inputs) - 1 + added > MOST_ADDED:
            return f"the stack before it adds {MOST_ADDED} arrays already"
        return None

    def _fold(self, value: int, node: Node) -> bool:
        """Let a product take a node into its weights or its epilogue."""
        source = node.inputs[0]
        item = self.by_result.get(source)
        if not isinstance(item, Product) or self.readers[source] > 1:
            return False
        product: Any = item.layer
        if product.activation is not None:
            return False
        if isinstance(node.layer, known.Activation):
            item.layer = dataclasses.replace(product, activation=(node.layer.kind, node.layer.parameters))
        else:
            # the channels of what follows must be the outputs of the product
            last = channel_axis(node.shape, self.graph.layout) == len(node.shape) - 1
            behind = isinstance(product, known.Conv) or (isinstance(product, known.Linear) and last)
            affine = node.layer.affine() if behind and not self.exact else None
            folded = None if affine is None else product.with_affine(*affine)
            if folded is None:
                return False
            item.layer = folded
            item.folded.append(value)
        item.nodes.append(value)
        del self.by_result[source]
        self.by_result[value] = item
        return True
