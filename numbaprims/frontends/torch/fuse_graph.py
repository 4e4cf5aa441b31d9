"""The graph of a module that is no sequence, for `fuse`: traced by torch.fx, its modules and functions as layers."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from numbaprims.frontends.torch.fuse_attention import ARGUMENTS as ATTENTION, attention, masked, multihead, unrepeated
from numbaprims.frontends.torch.fuse_calls import IN_PLACE, Constant, Copied, Expression, Value
from numbaprims.frontends.torch.fuse_functions import (
    JOINS,
    MATRIX_PRODUCTS,
    PRODUCTS,
    SUMS,
    of_rows,
    one,
    with_known,
    with_matrix,
)
from numbaprims.frontends.torch.fuse_patterns import pattern
from numbaprims.frontends.torch.fuse_views import REARRANGING, itself, rearranged
from numbaprims.frontends.torch.nn import OURS
from numbaprims.fusion import layers


class Unknown(Exception):
    """What `read` does not describe; the module is then called as it is."""


def _is_batch(size: Any) -> bool:
    """Whether a size is that of a tensor's first dimension, however it is asked for."""
    if not isinstance(size, torch.fx.Node):
        return False
    source: Any = size.args[0] if size.args else None
    if size.target is operator.getitem and isinstance(source, torch.fx.Node):
        shape = source.target == "size" or (source.target is getattr and source.args[1:] == ("shape",))
        return shape and size.args[1:] == (0,)
    return (size.target, size.args[1:]) == ("size", (0,))


def is_written(x: Any) -> bool:
    """Whether x is a tensor that says when it was written to; those of inference mode cannot be."""
    return isinstance(x, torch.Tensor) and not x.is_inference()


def _is_itself(x: Any, y: Any) -> bool:
    """Whether tensors are the same one."""
    return bool(x.data_ptr() == y.data_ptr() and (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype))


def _is_repeated(constant: Any, value: Any, sizes: Any) -> bool:
    """Whether `value` is a constant once for each image, whatever their number."""
    first = sizes[0][0] if sizes and isinstance(sizes[0], (tuple, list)) else sizes[0] if sizes else None
    once = isinstance(constant, torch.Tensor) and (constant.ndim < value.ndim or len(constant) == 1)
    return once and _is_batch(first)


#: Methods that give a tensor's numbers in another type.
_CONVERSIONS = ("to", "float", "double", "half", "bfloat16", "type_as", "detach")


def twin_of(module: Any) -> Any:
    """A module that computes the same with copies of the parameters: by numbaprims, where there is such a one."""
    copies: dict[int, Any] = {}
    for each in module.modules():
        for x in (*vars(each).values(), *each.parameters(recurse=False), *each.buffers(recurse=False)):
            if isinstance(x, torch.Tensor):
                own = x.detach().clone()
                copies[id(x)] = torch.nn.Parameter(own, False) if isinstance(x, torch.nn.Parameter) else own
    made = copy.deepcopy(module, copies)
    made.__class__ = OURS.get(type(module), type(module))
    return made


def only_tensor(y: Any, module: Any) -> Any:
    """What a module gives, which must be one tensor."""
    if not isinstance(y, torch.Tensor):
        raise TypeError(f"{type(module).__name__} gives a {type(y).__name__}; a module that is fused gives one tensor")
    return y


class Reader(torch.fx.Interpreter):
    """Runs a graph on the example and describes its nodes."""

    images_tried = 3
    """Images of the tensors that views are tried on: of any number."""

    def __init__(self, module: Any, graph: Any, layer: Callable[[Any, int], Any]) -> None:
        super().__init__(torch.fx.GraphModule(module, graph))
        self.layer = layer
        self.steps: list[tuple[Any, tuple[int, ...]]] = []
        self.numbers: dict[Any, int] = {}
        """Nodes that are tensors -> the number of their value in the description."""
        self.constants: dict[Any, Any] = {}
        """What reads nothing of the input -> its value."""
        self.places = {node: at for at, node in enumerate(graph.nodes)}
        self.shared: dict[Any, set[Any]] = {}
        """Tensors -> those that may share their memory: what a function was given and gave."""
        self.images: dict[Any, tuple[int, ...]] = {}
        """Tensors -> the shape of an image, also when nobody reads them any more."""
        self.views: dict[Any, tuple[Any, Callable[[Any], Any]]] = {}
        """Tensors that lie in another one -> that one, which has no gaps, and the function of it that they are."""
        self.rows: dict[Any, int] = {}
        """Tensors whose first dimension is that of images and the one behind it, as ``x.flatten(0, 1)``, and of which
        the values here have both -> the length of the second."""
        self.same: dict[Any, Any] = {}
        """Tensors of floats -> those of which they are the numbers, maybe in another type."""
        self.mixed: set[Any] = set()
        """Tensors whose first dimension may be that of images for the example alone."""
        self.writing: set[Any] = set()
        """Nodes that have written to a tensor that they were given."""

    def run_node(self, n: Any) -> Any:
        """Compute a node, and say what it is."""
        given = [x for each in n.all_input_nodes if is_written(x := self.env[each])]
        before = [x._version for x in given]
        value = super().run_node(n)
        if before != [x._version for x in given]:
            self.writing.add(n)
        if isinstance(value, torch.Tensor):
            self.images[n] = tuple(value.shape[1:])
            if n.target in _CONVERSIONS and value.is_floating_point() and self.env[n.args[0]].is_floating_point():
                self.same[n] = self._itself(n.args[0])
        if n.op == "placeholder":
            self._placeholder(n, value)
        elif n.op != "output" and all(each in self.constants for each in n.all_input_nodes):
            self.constants[n] = value.detach().clone() if isinstance(value, torch.Tensor) else value
            if n in self.writing:
                self._refresh()
        elif isinstance(value, torch.Tensor) and n.op != "output":
            # what is no batch of values is part of the functions that read it
            if self._is_batch(value) and (n.users or n in self.writing):
                self._describe(n, value)
            elif n.users and (rows := self._rows_of(value)):
                self.images[n], self.rows[n] = (rows, *self.images[n]), rows
                self._describe(n, value.unflatten(0, (-1, rows)))
                if n not in self.numbers:
                    del self.images[n], self.rows[n]
        if n in self.writing - self.numbers.keys() - self.constants.keys():
            raise Unknown(f"{n.name} writes to what is no batch of values")
        return value

    def _refresh(self) -> None:
        """Take constants anew that functions of no input have written to."""
        for node, old in self.constants.items():
            x = self.env.get(node)
            if isinstance(old, torch.Tensor) and x is not None and x is not old and x._version:
                self.constants[node] = x.detach().clone()

    def _placeholder(self, n: Any, value: Any) -> None:
        if self.numbers or not isinstance(value, torch.Tensor):
            raise Unknown(f"another argument, {n.name}")
        self.numbers[n], self.example = 0, value

    def _is_batch(self, value: Any) -> bool:
        first = self.example
        if not isinstance(value, torch.Tensor) or not value.ndim:
            return False
        return bool(value.shape[0] == first.shape[0]) and value.dtype == first.dtype

    def _rows_of(self, value: Any) -> int:
        """How many rows of each image a tensor may have; 0 where it has none."""
        images = len(self.example)
        if value.ndim < 2 or value.dtype != self.example.dtype or not images or value.shape[0] % images:
            return 0
        return int(value.shape[0] // images)

    def _value(self, node: Any) -> Any:
        """What a tensor is here: with a dimension of images."""
        x = self.env[node]
        return x.unflatten(0, (-1, self.rows[node])) if node in self.rows else x

    def _constant(self, value: Any, rows: int, ndim: int) -> Any:
        """A constant beside a value of so many dimensions here, which may be one more than a tensor has."""
        if rows and isinstance(value, torch.Tensor) and value.ndim == ndim - 1 and value.shape[0] > 1:
            value = value.unflatten(0, (-1, rows)) if value.shape[0] == rows * len(self.example) else value
        return self._once(value)

    def _once(self, value: Any) -> Any:
        """A constant without a dimension of images, where they all have the same."""
        return value

    def _itself(self, node: Any) -> Any:
        return self.same.get(node, node) if isinstance(node, torch.fx.Node) else node

    def _is_value(self, node: Any) -> bool:
        """Whether a node is a value of the description."""
        return node in self.numbers

    def _module(self, n: Any) -> Any:
        return self.fetch_attr(n.target) if n.op == "call_module" else None

    def _add(self, node: Any, layer: Any, *sources: Any) -> None:
        self.steps.append((layer, tuple(self.numbers[each] for each in sources)))
        self.numbers[node] = len(self.steps)

    def _describe(self, n: Any, value: Any) -> None:
        tensors = [each for each in n.all_input_nodes if each in self.numbers]
        operands, words = n.args[1:], n.kwargs
        rows = self.rows.get(n, 0)
        if n in self.writing and self.may_write(n):
            self._called(n, value)
            return
        if n.target in _CONVERSIONS and n.args[0] in self.numbers and _is_itself(value, self._value(n.args[0])):
            self._add(n, layers.Dropout(), n.args[0])
            self._share(n, n.args[0])
            return
        written = multihead(n, self._known) or pattern(n, self._itself, self._known, self.images)
        if written is not None and self._is_value(written[1]) and not self._rewritten(written[1]):
            if self.rows.get(written[1], 0) == rows:
                self._add(n, *written)
                return
        apart = any(self.rows.get(each, 0) != rows for each in tensors)
        if apart or (rows and not of_rows(n, n.target if n.op != "call_module" else type(self._module(n)))):
            self._called(n, value)
            return
        found = self._one(n, operands, words) if tensors and n.args and n.args[0] is tensors[0] else None
        if n.target in JOINS and n.args and isinstance(n.args[0], (tuple, list)):
            dim = n.args[1] if len(n.args) > 1 else words.get("dim", 0)
            dim += bool(rows) and dim >= 0
            if dim % value.ndim and tensors and all(each in self.numbers or self._repeats(each) for each in n.args[0]):
                branches = [[] if each in self.numbers else self._repeats(each) for each in n.args[0]]
                sources = [each if each in self.numbers else tensors[0] for each in n.args[0]]
                self._add(n, layers.Concat(branches, dim % value.ndim), *sources)
                return
        if len(tensors) == 2 and len(n.args) == 2 and not words and [*n.args] == tensors:
            shapes = {tuple(self._value(each).shape) for each in tensors}
            if n.target in SUMS and len(shapes) == 1:
                self._add(n, layers.Add(), *tensors)
                self._written(n)
                return
            if n.target in PRODUCTS:
                self._add(n, layers.Multiply(), *tensors)
                self._written(n)
                return
            if n.target in MATRIX_PRODUCTS and all(self._value(each).ndim == value.ndim > 2 for each in tensors):
                self._add(n, layers.MatMul(), *tensors)
                return
        attends = n.target is torch.nn.functional.scaled_dot_product_attention and len(n.args) > 2
        if attends and self.numbers.keys() >= {*n.args[:3]}:
            q, k, _ = (self._value(each) for each in n.args[:3])
            given = {**dict(zip(ATTENTION, self._known(n.args[3:]), strict=False)), **self._known(words)}
            mask = given.get("attn_mask")
            read = isinstance(mask, torch.fx.Node) and self.env[mask].ndim == 4 and not rows and self._is_value(mask)
            found = attention(q, k, **given | {"attn_mask": self._constant(mask, rows, q.ndim)}, each=read)
            if found is not None:
                self._add(n, found, n.args[0], *unrepeated(n.args[1:3], self.images, self.numbers), *[mask] * read)
                return
        if len(n.args) == 3 and tensors == [n.args[1]] and not words:
            found = with_matrix(n.target, *self._known((n.args[0], n.args[2])))
        if n.target is operator.getitem and n.args[1:] == (0,):
            found, tensors = self._attention(n.args[0]), tensors or n.args[0].args[:1]
        if found is None and len(tensors) == 1 and len(n.args) == 2 and tensors[0] in n.args and not words:
            x, first = self._value(tensors[0]), n.args[0] is tensors[0]
            other = self._constant(self._known(n.args[first]), rows, value.ndim)
            found = with_known(n.target, x, other, first, tuple(value.shape))
        if found is None:
            self._called(n, value)
        else:
            self._add(n, found, tensors[0])
            if getattr(found, "passes", False):
                self._share(n, tensors[0])
            else:
                self._written(n)

    def _one(self, n: Any, operands: Any, words: Any) -> Any:
        """The layer of one tensor that a node is."""
        x, target = self._value(n.args[0]), n.target
        if n.op == "call_module":
            module = self._module(n)
            found = self.layer(module, x.ndim)
            return masked(found, module, x, *self._known((*operands, words))) if operands or words else found
        return one(target, x, self._known(operands), self._known(words), self.layer)

    def _attention(self, n: Any) -> Any:
        """What a module for attention gives first, of one tensor that is queries, keys and values."""
        if not isinstance(n, torch.fx.Node) or n.op != "call_module" or len(n.args) < 3:
            return None
        if n.args[0] not in self.numbers or len({*n.args[:3]}) > 1:
            return None
        module = self._module(n)
        described = self.layer(module, len(self.images[n.args[0]]) + 1)
        return masked(described, module, *self._known((*n.args, n.kwargs)))

    def _known(self, given: Any) -> Any:
        """Arguments with the values of those that are no values of the input, on the host, where layers are described;
        nodes stay what they are."""

        def known(node: Any) -> Any:
            value = self.constants.get(node, node)
            return value.cpu() if isinstance(value, torch.Tensor) else value

        return torch.fx.node.map_arg(given, known)

    def may_write(self, node: Any) -> bool:
        """Whether a node writes to what the caller wants to be written to."""
        return False

    def _rewritten(self, node: Any) -> bool:
        """Whether something has been written to a tensor, or to what shares its memory."""
        return not self.shared.get(node, {node}).isdisjoint(each.args[0] for each in self.writing)

    def _repeats(self, node: Any) -> Any:
        """The layer of a constant that is the same for each image; None where it is none."""
        value: Any = self.constants.get(node)
        if not self._is_batch(value) or not torch.equal(value, value[:1].expand_as(value)):
            return None
        return layers.Constant(value[0].cpu())

    def _written(self, n: Any) -> None:
        """Let those that come later read what a node has written over its first operand."""
        if n in self.writing:
            others = self.shared.get(n.args[0], set()) - {n.args[0]}
            if any(self.places[user] > self.places[n] for each in others for user in each.users):
                raise Unknown(f"{n.name} writes to what may be part of another tensor")
            old = self.numbers[n.args[0]]  # which others have too that were written before: they are the same tensor
            for each in [each for each, k in self.numbers.items() if k == old]:
                self.numbers[each] = self.numbers[n]
                self.views.pop(each, None)

    def _share(self, *nodes: Any) -> None:
        """Note that tensors may share their memory."""
        family = set(nodes).union(*(self.shared.get(each, ()) for each in nodes))
        self.shared.update(dict.fromkeys(family, family))

    def _called(self, n: Any, value: Any) -> None:
        """A node by torch, with the sizes and other numbers that it reads."""
        tensors: list[Any] = []
        inner: list[Any] = []

        def visit(node: Any) -> None:
            if self._is_value(node):
                if node not in tensors:
                    tensors.append(node)
            elif node not in inner:
                for each in () if node in self.constants else node.all_input_nodes:
                    visit(each)
                inner.append(node)

        for each in n.all_input_nodes:
            visit(each)
        inner.append(n)
        joined = [node for node in tensors if node in self.rows]
        steps: list[tuple[str, Any, Any, Any]] = [
            ("call_method", "flatten", (Value(tensors.index(node)), 0, 1), {}) for node in joined
        ]
        order = [*(None if node in self.rows else node for node in tensors), *joined, *inner]
        places = {node: Value(at) for at, node in enumerate(order) if node is not None}
        for node in inner:
            if node in self.constants:
                steps.append(("call_function", Constant(self.constants[node]), (), {}))
                continue
            module = self._module(node)
            put: Any = places.get
            args, words = (torch.fx.node.map_arg(each, put) for each in (node.args, node.kwargs))
            target = node.target if module is None else twin_of(module)
            if (node.op, target) == ("call_method", "view") and not isinstance(node.args[1], torch.dtype):
                target = "reshape"  # the elements of what we compute may lie in another order than torch's
            if node in self.writing and not self.may_write(node):
                if node is not n or target not in IN_PLACE or n.args[0] not in self.numbers:
                    raise Unknown(f"{node.name} writes to its operand")
                target = Copied(target)
            steps.append((node.op, target, args, words))
        whole = (
            inner == [n] and n.op == "call_module" and n.args == (*tensors,) and len(tensors) == 1 and not n.kwargs
        ) and not joined
        function = steps[0][1] if whole else Expression(steps)
        if n.target == "expand" and tensors and _is_repeated(self.constants.get(n.args[0]), value, n.args[1:]):
            self._add(n, layers.Constant(value[0].cpu()), tensors[0])
        elif not self._rearranged(n, tensors, inner, function) and n not in self.rows:
            self._add(n, layers.Call(function, tuple(value.shape[1:])), *tensors)
        if n in self.writing:
            self._written(n)
        else:
            self._share(n, *tensors)

    def _rearranged(self, n: Any, tensors: list[Any], inner: list[Any], function: Any) -> bool:
        """Describe a node whose result has the elements of one tensor, if it is one."""
        computed = [each for each in inner if each not in self.constants]
        targets = [type(self._module(each)) if each.op == "call_module" else each.target for each in computed]
        if n in self.writing or not all(each in REARRANGING for each in targets) or self.mixed & {*tensors}:
            return False
        if any(each.target in (operator.mul, operator.floordiv) and each in self.images for each in computed):
            return False  # which are there for sizes
        roots = [self.views.get(each, (each, itself)) for each in tensors]
        found = rearranged(
            function, [(self.images[root], view) for root, view in roots], self.images[n], self.images_tried,
            self.rows.get(n, 0),
        )  # fmt: skip
        if found is None:
            self.mixed.add(n)
            return False
        root = roots[found.source][0]
        if found.view is None:
            self._add(n, found.layer, root if found.of_whole else tensors[found.source])
        else:
            self.views[n] = root, found.view
            self._add(n, found.layer, root)
        return True
