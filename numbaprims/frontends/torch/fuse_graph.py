"""The graph of a module that is no sequence, for `fuse`: traced by torch.fx, its modules and functions as layers."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from numbaprims.frontends.torch.fuse_attention import attention, masked
from numbaprims.frontends.torch.fuse_functions import JOINS, MATRIX_PRODUCTS, PRODUCTS, SUMS, one, with_known
from numbaprims.frontends.torch.fuse_views import REARRANGING, itself, rearranged
from numbaprims.frontends.torch.modules import hooked
from numbaprims.frontends.torch.nn import OURS, TWINS
from numbaprims.fusion import layers


class Unknown(Exception):
    """What `read` does not describe; the module is then called as it is."""


@dataclasses.dataclass(frozen=True)
class _Value:
    """A place in the list of what an expression is given and has computed; no tuple, whose elements are looked at."""

    at: int


class Expression:
    """``expression(*tensors)``: torch's functions and methods one after another, as a module calls them."""

    def __init__(self, steps: list[tuple[str, Any, Any, Any]]) -> None:
        self.steps = steps

    def __call__(self, *values: Any) -> Any:
        known = list(values)
        for kind, target, args, words in self.steps:
            args, words = (torch.fx.node.map_aggregate(each, lambda x: _given(x, known)) for each in (args, words))
            function = getattr(args[0], target) if kind == "call_method" else target
            known.append(function(*(args[1:] if kind == "call_method" else args), **words))
        return known[-1]

    def __repr__(self) -> str:
        targets = (target for _, target, *_ in self.steps)
        return ", ".join(each if isinstance(each, str) else getattr(each, "__name__", repr(each)) for each in targets)


def _given(x: Any, known: list[Any]) -> Any:
    return known[x.at] if isinstance(x, _Value) else x


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


class _Reader(torch.fx.Interpreter):
    """Runs a graph on the example and describes its nodes."""

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
        self.mixed: set[Any] = set()
        """Tensors whose first dimension may be that of images for the example alone."""
        self.writing: set[Any] = set()
        """Nodes that have written to a tensor that they were given."""

    def run_node(self, n: Any) -> Any:
        """Compute a node, and say what it is."""
        given = [self.env[each] for each in n.all_input_nodes]
        given = [x for x in given if isinstance(x, torch.Tensor) and not x.is_inference()]  # which cannot be written to
        before = [x._version for x in given]
        value = super().run_node(n)
        if before != [x._version for x in given]:
            self.writing.add(n)
        if isinstance(value, torch.Tensor):
            self.images[n] = tuple(value.shape[1:])
        if n.op == "placeholder":
            if self.numbers or not isinstance(value, torch.Tensor):
                raise Unknown(f"another argument, {n.name}")
            self.numbers[n], self.example = 0, value
        elif n.op != "output" and all(each in self.constants for each in n.all_input_nodes):
            self.constants[n] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        elif isinstance(value, torch.Tensor) and n.op != "output":
            first = self.example
            # what is no batch of values is part of the functions that read it
            if value.ndim and value.shape[0] == first.shape[0] and value.dtype == first.dtype:
                if n.users or n in self.writing:
                    self._describe(n, value)
        if n in self.writing - self.numbers.keys() - self.constants.keys():
            raise Unknown(f"{n.name} writes to what is no batch of values")
        return value

    def _module(self, n: Any) -> Any:
        return self.fetch_attr(n.target) if n.op == "call_module" else None

    def _add(self, node: Any, layer: Any, *sources: Any) -> None:
        self.steps.append((layer, tuple(self.numbers[each] for each in sources)))
        self.numbers[node] = len(self.steps)

    def _describe(self, n: Any, value: Any) -> None:
        tensors = [each for each in n.all_input_nodes if each in self.numbers]
        operands, words = n.args[1:], n.kwargs
        found = self._one(n, operands, words) if tensors and n.args and n.args[0] is tensors[0] else None
        if n.target in JOINS and n.args and isinstance(n.args[0], (tuple, list)):
            dim = n.args[1] if len(n.args) > 1 else words.get("dim", 0)
            if all(each in self.numbers for each in n.args[0]) and dim in (1, 1 - value.ndim):
                self._add(n, layers.Concat([()] * len(n.args[0])), *n.args[0])
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
            found = attention(q, k, *self._known(n.args[3:]), **self._known(words))
            if found is not None:
                self._add(n, found, *n.args[:3])
                return
        if n.target is operator.getitem and n.args[1:] == (0,):
            found, tensors = self._attention(n.args[0]), tensors or n.args[0].args[:1]
        if found is None and len(tensors) == 1 and len(n.args) == 2 and tensors[0] in n.args and not words:
            x, first = self.env[tensors[0]], n.args[0] is tensors[0]
            found = with_known(n.target, x, self._known(n.args[first]), first, tuple(value.shape))
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
            if node in self.numbers:
                if node not in tensors:
                    tensors.append(node)
            elif node not in inner:
                for each in () if node in self.constants else node.all_input_nodes:
                    visit(each)
                inner.append(node)

        for each in n.all_input_nodes:
            visit(each)
        inner.append(n)
        places = {node: _Value(at) for at, node in enumerate([*tensors, *inner])}
        steps: list[tuple[str, Any, Any, Any]] = []
        for node in inner:
            if node in self.constants:
                steps.append(("call_function", _Constant(self.constants[node]), (), {}))
                continue
            module = self._module(node)
            put: Any = places.get
            args, words = (torch.fx.node.map_arg(each, put) for each in (node.args, node.kwargs))
            target = node.target if module is None else twin_of(module)
            if node in self.writing:
                if node is not n or target not in _IN_PLACE or n.args[0] not in self.numbers:
                    raise Unknown(f"{node.name} writes to its operand")
                target = _Copied(target)
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
        found = rearranged(function, [(self.images[root], view) for root, view in roots], self.images[n])
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


@dataclasses.dataclass(frozen=True, repr=False)
class _Constant:
    """A parameter that a function reads, or what was computed of parameters alone."""

    value: Any

    def __call__(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return f"constant {tuple(getattr(self.value, 'shape', ()))}"


@dataclasses.dataclass(frozen=True, repr=False)
class _Copied:
    """A function that writes to its first operand, of a copy of that: what is in place in the type of the operand."""

    function: Callable[..., Any]

    def __call__(self, x: Any, other: Any) -> Any:
        return self.function(x.clone(), other)

    def __repr__(self) -> str:
        return self.function.__name__


@contextlib.contextmanager
def _kept(module: Any, example: Any) -> Iterator[None]:
    """Leave a module's buffers and the states of random numbers as they were, whatever a `forward` does to them."""
    buffers = [
        (each, name, x, x._version, x.clone())
        for each in module.modules()
        for name, x in each.named_buffers(recurse=False)
        if not (torch.nn.parameter.is_lazy(x) or x.is_inference())
    ]
    with torch.random.fork_rng([example.device] if example.is_cuda else []):
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
    with _kept(module, example):
        return function(example.clone())


def _answer(module: Any, example: Any) -> tuple[Any, Any]:
    """An input and what the module gives: numbers of the example may be all zero, so others where it takes them."""
    if example.is_floating_point():
        with contextlib.suppress(Exception):
            drawn = run(torch.rand_like, module, example)
            return drawn, run(module, module, drawn)
    return example, run(module, module, example)


def _same(x: Any, y: Any) -> bool:
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
        with _kept(module, example):
            graph = _Tracer().trace(module)
        reader = _Reader(module, graph, layer)
        value = run(reader.run, module, example)
        x, answer = _answer(module, example)
        same = _same(run(reader.module, module, x), answer)
    except Exception as error:  # whatever a module's own code raises, or the graph of what it has done with a proxy
        raise Unknown(str(error)) from error
    if not same:
        raise Unknown("its graph computes something else")
    (last,) = next(node for node in reversed(graph.nodes) if node.op == "output").args
    if last not in reader.numbers:
        raise Unknown("it gives no single tensor")
    order = reader.numbers[last]
    steps = reader.steps if order == len(reader.steps) else [*reader.steps, (layers.Activation("identity"), (order,))]
    return layers.Wired(_read_ones(steps)), value


def _read_ones(steps: list[tuple[Any, tuple[int, ...]]]) -> list[tuple[Any, tuple[int, ...]]]:
    """Steps without the views that nobody reads, as those that others are views of too."""
    read = {len(steps), *(value for _, values in steps for value in values)}
    kept, numbers = list[tuple[Any, tuple[int, ...]]](), {0: 0}
    for number, (layer, values) in enumerate(steps, 1):
        if number in read or not isinstance(layer, layers.View):
            kept.append((layer, tuple(numbers[value] for value in values)))
            numbers[number] = len(kept)
    return kept
