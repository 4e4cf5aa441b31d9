"""The graph of a module that is no sequence, for `fuse`: traced by torch.fx, its modules and functions as layers."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from numbaprims.frontends.torch.fuse_attention import ARGUMENTS as ATTENTION, attention, masked, multihead, unrepeated
from numbaprims.frontends.torch.fuse_calls import Constant, Copied, Expression, Value
from numbaprims.frontends.torch.fuse_functions import JOINS, MATRIX_PRODUCTS, PRODUCTS, SUMS, one, with_known
from numbaprims.frontends.torch.fuse_patterns import pattern
from numbaprims.frontends.torch.fuse_views import REARRANGING, itself, rearranged
from numbaprims.frontends.torch.modules import hooked
from numbaprims.frontends.torch.nn import OURS, TWINS
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


def _is_repeated(constant: Any, value: Any, sizes: Any) -> bool:
    """Whether `value` is a constant once for each image, whatever their number."""
    first = sizes[0][0] if sizes and isinstance(sizes[0], (tuple, list)) else sizes[0] if sizes else None
    once = isinstance(constant, torch.Tensor) and (constant.ndim < value.ndim or len(constant) == 1)
    return once and _is_batch(first)


class _Proxy(torch.fx.Proxy):
    """A value whose operators in place are recorded as such: of ``x += y`` torch.fx makes ``x + y``."""


def _in_place(function: Any) -> Callable[[Any, Any], Any]:
    return lambda x, other: x.tracer.create_proxy("call_function", function, (x, other), {})


#: Methods that give a tensor's numbers in another type.
_CONVERSIONS = ("to", "float", "double", "half", "bfloat16", "type_as", "detach")
_IN_PLACE = {getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}
for _operator in _IN_PLACE:
    setattr(_Proxy, f"__{_operator.__name__}__", _in_place(_operator))


class _Tracer(torch.fx.Tracer):
    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        """torch's own, their twins and what has hooks: what stands in them is not looked at."""
        return super().is_leaf_module(m, module_qualified_name) or type(m) in TWINS or hooked(m)

    def proxy(self, node: Any) -> Any:
        return _Proxy(node, self)


def is_leaf(module: Any) -> bool:
    """Whether a module is not looked into."""
    return bool(_Tracer().is_leaf_module(module, ""))


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
        if n in self.writing and self._may_write(n):
            self._called(n, value)
            return
        if n.target in _CONVERSIONS and value is self.env[n.args[0]] and n.args[0] in self.numbers:
            self._add(n, layers.Dropout(), n.args[0])
            self._share(n, n.args[0])
            return
        written = multihead(n, self._known) or pattern(n, self._itself, self._known, self.images)
        if written is not None and self._is_value(written[1]) and not self._rewritten(written[1]):
            self._add(n, *written)
            return
        found = self._one(n, operands, words) if tensors and n.args and n.args[0] is tensors[0] else None
        if n.target in JOINS and n.args and isinstance(n.args[0], (tuple, list)):
            dim = n.args[1] if len(n.args) > 1 else words.get("dim", 0)
            if dim % value.ndim and tensors and all(each in self.numbers or self._repeats(each) for each in n.args[0]):
                branches = [[] if each in self.numbers else self._repeats(each) for each in n.args[0]]
                sources = [each if each in self.numbers else tensors[0] for each in n.args[0]]
                self._add(n, layers.Concat(branches, dim % value.ndim), *sources)
                return
        if len(tensors) == 2 and len(n.args) == 2 and not words and [*n.args] == tensors:
            shapes = {tuple(self.env[each].shape) for each in tensors}
            if n.target in SUMS and len(shapes) == 1:
                self._add(n, layers.Add(), *tensors)
                self._written(n)
                return
            if n.target in PRODUCTS:
                self._add(n, layers.Multiply(), *tensors)
                self._written(n)
                return
            if n.target in MATRIX_PRODUCTS and all(self.env[each].ndim == value.ndim > 2 for each in tensors):
                self._add(n, layers.MatMul(), *tensors)
                return
        attends = n.target is torch.nn.functional.scaled_dot_product_attention and len(n.args) > 2
        if attends and self.numbers.keys() >= {*n.args[:3]}:
            q, k, _ = (self.env[each] for each in n.args[:3])
            given = {**dict(zip(ATTENTION, self._known(n.args[3:]), strict=False)), **self._known(words)}
            mask = given.get("attn_mask")
            read = isinstance(mask, torch.fx.Node) and self.env[mask].ndim == 4 and self._is_value(mask)
            found = attention(q, k, **given | {"attn_mask": self._once(mask)}, each=read)
            if found is not None:
                self._add(n, found, n.args[0], *unrepeated(n.args[1:3], self.images, self.numbers), *[mask] * read)
                return
        if n.target is operator.getitem and n.args[1:] == (0,):
            found, tensors = self._attention(n.args[0]), tensors or n.args[0].args[:1]
        if found is None and len(tensors) == 1 and len(n.args) == 2 and tensors[0] in n.args and not words:
            x, first = self.env[tensors[0]], n.args[0] is tensors[0]
            found = with_known(n.target, x, self._once(self._known(n.args[first])), first, tuple(value.shape))
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
        x, target = self.env[n.args[0]], n.target
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

    def _may_write(self, node: Any) -> bool:
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
        places = {node: Value(at) for at, node in enumerate([*tensors, *inner])}
        steps: list[tuple[str, Any, Any, Any]] = []
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
            if node in self.writing and not self._may_write(node):
                if node is not n or target not in _IN_PLACE or n.args[0] not in self.numbers:
                    raise Unknown(f"{node.name} writes to its operand")
                target = Copied(target)
            steps.append((node.op, target, args, words))
        whole = (
            inner == [n] and n.op == "call_module" and len(tensors) == 1 and n.args == (tensors[0],) and not n.kwargs
        )
        function = steps[0][1] if whole else Expression(steps)
        if n.target == "expand" and tensors and _is_repeated(self.constants.get(n.args[0]), value, n.args[1:]):
            self._add(n, layers.Constant(value[0].cpu()), tensors[0])
        elif not self._rearranged(n, tensors, inner, function):
            self._add(n, layers.Call(function, tuple(value.shape[1:])), *tensors)
        if n in self.writing:
            self._written(n)
        else:
            self._share(n, *tensors)

    def _rearranged(self, n: Any, tensors: list[Any], inner: list[Any], function: Any) -> bool:
        """Describe a node whose result has the elements of one tensor, if it is one."""
        targets = [type(self._module(each)) if each.op == "call_module" else each.target for each in inner]
        if n in self.writing or not all(each in REARRANGING for each in targets) or self.mixed & {*tensors}:
            return False
        roots = [self.views.get(each, (each, itself)) for each in tensors]
        found = rearranged(
            function, [(self.images[root], view) for root, view in roots], self.images[n], self.images_tried
        )
        if found is None:
            self.mixed.add(n)
            return False
        root = roots[found.source][0]
        if found.view is None:
            self._add(n, found.layer, tensors[found.source])
        else:
            self.views[n] = root, found.view
            self._add(n, found.layer, root)
        return True


@contextlib.contextmanager
def kept(module: Any, devices: list[Any]) -> Iterator[None]:
    """Leave a module's buffers and the states of random numbers as they were, whatever a `forward` does to them."""
    buffers = [
        (each, name, x, x._version, x.clone())
        for each in module.modules()
        for name, x in each.named_buffers(recurse=False)
        if not (torch.nn.parameter.is_lazy(x) or x.is_inference())
    ]
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for each, name, x, version, value in buffers:
                if x._version != version:
                    x.copy_(value)
                if getattr(each, name) is not x:
                    setattr(each, name, x)


def run(function: Callable[[Any], Any], module: Any, example: Any) -> Any:
    """What a module, or what is made of it, gives for a copy of the example; all that it writes to stays as it is."""
    with kept(module, [example.device] if example.is_cuda else []):
        return function(example.clone())


def _answer(module: Any, example: Any) -> tuple[Any, Any]:
    """An input and what the module gives: numbers of the example may be all zero, so others where it takes them."""
    if example.is_floating_point():
        with contextlib.suppress(Exception):
            drawn = run(torch.rand_like, module, example)
            return drawn, run(module, module, drawn)
    return example, run(module, module, example)


def same_numbers(x: Any, y: Any) -> bool:
    """Whether tensors hold the same numbers, up to sums that a device may take in another order."""
    if not isinstance(y, torch.Tensor) or (x.shape, x.dtype) != (y.shape, y.dtype):
        return False
    if not x.is_floating_point() or not x.numel():
        return torch.equal(x, y)
    tolerance = torch.finfo(x.dtype).eps ** 0.5
    size = float(y.nan_to_num(0, 0, 0).abs().mean())
    return torch.allclose(x, y, rtol=tolerance, atol=tolerance * size, equal_nan=True)


def read(module: Any, example: Any, layer: Callable[[Any, int], Any]) -> tuple[Any, Any]:
    """The description of a module's graph, and what the module gives for the example.

    `layer` gives the layer that a module of torch is, or None.

    Raises:
        Unknown: torch.fx does not trace it, or it gives no tensor, takes several, or writes to parts of tensors; or the
            graph computes something else, as where a module asks whether x is a tensor, which a proxy is not.
    """
    try:
        with kept(module, [example.device] if example.is_cuda else []):
            graph = _Tracer().trace(module)
        reader = Reader(module, graph, layer)
        value = run(reader.run, module, example)
        x, answer = _answer(module, example)
        same = same_numbers(run(reader.module, module, x), answer)
    except Exception as error:  # whatever a module's own code raises, or the graph of what it has done with a proxy
        raise Unknown(str(error)) from error
    if not same:
        raise Unknown("its graph computes something else")
    last = output_of(graph)
    if last not in reader.numbers:
        raise Unknown("it gives no single tensor")
    order = reader.numbers[last]
    steps = reader.steps if order == len(reader.steps) else [*reader.steps, (layers.Activation("identity"), (order,))]
    return layers.Wired(read_ones(steps, [len(steps)])[0]), value


def is_written(x: Any) -> bool:
    """Whether x is a tensor that says when it was written to; those of inference mode cannot be."""
    return isinstance(x, torch.Tensor) and not x.is_inference()


def output_of(graph: Any) -> Any:
    """What a graph gives: nodes, as it gives their values."""
    return next(node for node in reversed(graph.nodes) if node.op == "output").args[0]


def read_ones(
    steps: list[tuple[Any, tuple[int, ...]]], results: list[int]
) -> tuple[list[tuple[Any, tuple[int, ...]]], list[int]]:
    """Steps without those that nobody reads, as views that others are views of too, and the numbers of results."""
    read = {*results}
    for number, (layer, values) in reversed([*enumerate(steps, 1)]):
        if number in read or (isinstance(layer, layers.Call) and not isinstance(layer.function, Expression)):
            read |= {number, *values}
    kept, numbers = list[tuple[Any, tuple[int, ...]]](), {0: 0}
    for number, (layer, values) in enumerate(steps, 1):
        if number in read:
            kept.append((layer, tuple(numbers[value] for value in values)))
            numbers[number] = len(kept)
    return kept, [numbers[value] for value in results]
