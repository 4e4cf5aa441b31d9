"""A module as a graph of torch.fx, which is read and compared with the module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from numbaprims.frontends.torch.fuse_calls import IN_PLACE, Expression
from numbaprims.frontends.torch.fuse_graph import Reader, Unknown
from numbaprims.frontends.torch.modules import hooked
from numbaprims.frontends.torch.nn import TWINS
from numbaprims.fusion import layers


class _Proxy(torch.fx.Proxy):
    """A value whose operators in place are recorded as such: of ``x += y`` torch.fx makes ``x + y``."""


def _in_place(function: Any) -> Callable[[Any, Any], Any]:
    return lambda x, other: x.tracer.create_proxy("call_function", function, (x, other), {})


for _operator in IN_PLACE:
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
    if x.itemsize < 4:  # what many layers round shows in single numbers near 0: by norms
        odd = ~(x.isfinite() & y.isfinite())
        if not torch.allclose(x[odd], y[odd], equal_nan=True):
            return False
        x, y = (each.double().masked_fill(odd, 0) for each in (x, y))
        return all(float((x - y).norm(p=p)) <= tolerance * float(y.norm(p=p)) for p in (2, torch.inf))
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
    if last not in reader.numbers or last in reader.rows:
        raise Unknown("it gives no single tensor")
    order = reader.numbers[last]
    steps = reader.steps if order == len(reader.steps) else [*reader.steps, (layers.Activation("identity"), (order,))]
    return layers.Wired(read_ones(steps, [len(steps)])[0]), value


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
