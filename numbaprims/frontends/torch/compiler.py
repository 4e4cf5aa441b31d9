"""`backend`: graphs of torch.compile as fused networks."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

import numbaprims
from numbaprims.frontends.torch.fuse import layer_of
from numbaprims.frontends.torch.fuse_graph import Reader, Unknown, is_written, output_of, read_ones, same_numbers
from numbaprims.fusion import layers

#: Networks that a graph has, one for each kind of inputs; further ones run by torch.
MOST_KINDS = 8
_MOST_SEEN = 1000


_POINTER, _VERSION = operator.methodcaller("data_ptr"), operator.attrgetter("_version")
#: Functions that read the size of a tensor only.
_BY_SIZE = ("new_zeros", "new_ones", "new_full", torch.zeros_like, torch.ones_like, torch.full_like)


class _Written(Unknown):
    """What reads no input has been written to by what does."""

    def __init__(self, nodes: set[Any], name: str) -> None:
        super().__init__(f"{name} writes to what is computed once")
        self.nodes = nodes


def _place(x: Any) -> int:
    return x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) else -1


class _Values(torch.fx.Interpreter):
    """Runs a graph and sorts its nodes: what reads no input, what is computed of inputs before any batch of floats is,
    and what may be such a batch: tensors of floats that are inputs, or functions of inputs of other types."""

    def __init__(self, module: Any, fixed: set[Any], moving: set[Any]) -> None:
        super().__init__(module)
        self.fixed, self.before, self.begin = set(fixed), set[Any](), dict[Any, Any]()
        self.moving = moving
        """What reads no input and is written to by what does."""
        self.writing: list[Any] = []
        """What writes to values that are no batch of floats."""

    def run_node(self, n: Any) -> Any:
        given = n.all_input_nodes
        read = [(each, self.env[each]) for each in given if is_written(self.env[each])]
        versions = [x._version for _, x in read]
        value = super().run_node(n)
        written = {each: x for (each, x), version in zip(read, versions, strict=True) if x._version != version}
        if not self.fixed.isdisjoint(written) and not self.fixed.issuperset(given):
            places = {x.untyped_storage().data_ptr() for x in written.values()}
            raise _Written({each for each in self.fixed if _place(self.env.get(each)) in places}, n.name)
        if not self.before.isdisjoint(written):
            self.writing.append(n)
        if n.op == "output":
            return value
        once = n.target in _BY_SIZE or all(each in self.fixed for each in given)
        if n.op != "placeholder" and once and n not in self.moving:
            self.fixed.add(n)
        elif n not in self.fixed and all(each in self.fixed or each in self.before for each in given):
            floats = isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 1
            if floats:
                self.begin[n] = value
            else:
                self.before.add(n)
        return value


class _Compiled(Reader):
    """Describes a graph for inputs of these very sizes, of which some begin it."""

    def __init__(self, module: Any, values: _Values, first: Any) -> None:
        super().__init__(module, module.graph, layer_of)
        self.kinds, self.first, self.example = values, first, values.begin[first]
        self.images_tried = len(self.example)
        self.given: list[Any] = []
        """What the network is called with beside x."""

    def run_node(self, n: Any) -> Any:
        if n in self.kinds.fixed and (n.op == "placeholder" or n.target in _BY_SIZE):
            value = torch.fx.Interpreter.run_node(self, n)
            self.constants[n] = value.detach() if isinstance(value, torch.Tensor) else value
            return value
        if n in self.kinds.before or n in self.kinds.begin:
            value = torch.fx.Interpreter.run_node(self, n)
            if n is self.first:
                self.numbers[n] = 0
            elif n in self.kinds.begin and self._is_batch(value):
                self._give(n, value)
            self.images[n] = tuple(value.shape[1:]) if isinstance(value, torch.Tensor) else ()
            return value
        return super().run_node(n)

    def _once(self, value: Any) -> Any:
        images = len(self.example)
        if not isinstance(value, torch.Tensor) or value.ndim < 2 or len(value) != images:
            return value
        return value[:1] if torch.equal(value, value[:1].expand_as(value)) else value

    def _give(self, n: Any, value: Any) -> None:
        self.given.append(n)
        self._add(n, layers.Given(tuple(value.shape)))

    def _is_value(self, node: Any) -> bool:
        if node not in self.numbers and (node in self.kinds.before or node in self.kinds.begin):
            value = self.env[node]
            if not isinstance(value, torch.Tensor) or not value.ndim:
                raise Unknown(f"{node.name} is a number of each call")
            self._give(node, value)
        return node in self.numbers


class _Parts(NamedTuple):
    """What runs of a graph for inputs of some sizes."""

    before: Any
    """Of the inputs: x, what is given beside it, and the results that the network has no part in."""
    network: Any
    given: int
    results: tuple[tuple[str, Any], ...]
    """Of each result, who gives it: ("network" or "before", its number), or ("value", itself)."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        found = self.before(*inputs)  # and behind them what writes to them gives
        y = self.network(*found[: 1 + self.given])
        of = {"network": y if isinstance(y, tuple) else (y,), "before": found}
        return tuple(value if kind == "value" else of[kind][value] for kind, value in self.results)


def _sorted(module: Any, fixed: set[Any], inputs: Sequence[Any]) -> tuple[_Values, Any]:
    """The nodes of a graph by what they read, and what it gives."""
    moving = set[Any]()
    while True:
        values = _Values(module, fixed, moving)
        try:
            return values, values.run(*inputs)
        except _Written as error:
            if error.nodes <= moving or not error.nodes.isdisjoint(fixed):
                raise
            moving |= error.nodes


def _parts(module: Any, fixed: set[Any], inputs: Sequence[Any], options: dict[str, Any]) -> tuple[_Parts, Any]:
    """The network of a graph, and what the graph gives for the inputs.

    Raises:
        Unknown: nothing in it is a batch of floats, it writes to inputs, or draws random numbers.
    """
    if any(getattr(n.target, "__name__", "") == "_enter_autocast" for n in module.graph.nodes):
        raise Unknown("autocast is on in it")
    state, versions = torch.random.get_rng_state(), [x._version for x in filter(is_written, inputs)]
    values, answer = _sorted(module, fixed, inputs)
    if not torch.equal(state, torch.random.get_rng_state()):
        raise Unknown("it draws random numbers")
    if versions != [x._version for x in filter(is_written, inputs)]:
        raise Unknown("it writes to what it is given")
    if not values.begin:
        raise Unknown("nothing in it is a batch of floats")
    first = max(values.begin, key=lambda n: values.begin[n].numel())
    reader = _Compiled(module, values, first)
    reader.run(*inputs)
    if not any(reads for _, reads in reader.steps):
        raise Unknown("it has no layers")
    wanted, results = list[Any](), list[tuple[str, Any]]()
    outside = [first, *reader.given]
    for node in output_of(module.graph):
        if not isinstance(node, torch.fx.Node) or (node in reader.constants and node.op != "placeholder"):
            results.append(("value", reader.constants.get(node, node)))
        elif node.op == "placeholder" or node in values.before or node in values.begin:
            results.append(("before", len(outside)))
            outside.append(node)
        elif node in reader.numbers:
            results.append(("network", len(wanted)))
            wanted.append(reader.numbers[node])
        else:
            raise Unknown(f"{node.name} is no batch of values")
    if not wanted:
        raise Unknown("nothing that it gives is computed of a batch of floats")
    steps, wanted = read_ones(reader.steps, wanted)
    network = numbaprims.fuse(
        layers.Wired(steps, wanted), tuple(reader.example.shape), dtype=reader.example.dtype, **options
    )
    before = _only(module, [*outside, *values.writing], reader.constants)
    return _Parts(before, network, len(reader.given), tuple(results)), answer


def _devices(inputs: Sequence[Any]) -> set[Any]:
    """The GPUs of tensors, which draw random numbers of their own."""
    return {x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda}


def _only(module: Any, nodes: Sequence[Any], constants: dict[Any, Any]) -> Any:
    """The part of a graph that computes some of its nodes."""
    needed, graph, copied = set[Any](), torch.fx.Graph(), dict[Any, Any]()
    root, places = torch.nn.Module(), [each for each in module.graph.nodes if each.op == "placeholder"]

    def need(node: Any) -> None:
        if node not in needed:
            needed.add(node)
            for each in () if node in constants else node.all_input_nodes:
                need(each)

    for node in nodes:
        need(node)
    inputs = operator.itemgetter(*(at for at, node in enumerate(places) if node in needed), slice(0))  # always a tuple
    if needed.issubset(places):
        order = [places.index(node) for node in nodes]
        return lambda *given: [given[each] for each in order]
    for at, node in enumerate(module.graph.nodes):
        if node in needed and node.op == "placeholder":
            copied[node] = graph.placeholder(f"x{at}")
        elif node in needed and node in constants:
            setattr(root, f"constant{at}", constants[node])
            copied[node] = graph.get_attr(f"constant{at}")
        elif node in needed:
            copied[node] = graph.node_copy(node, copied.get)
            if node.op == "call_module":
                root.add_module(node.target.replace(".", "_"), module.get_submodule(node.target))
                copied[node].target = node.target.replace(".", "_")
    graph.output(tuple(copied[node] for node in nodes))
    run = torch.fx.GraphModule(root, graph).forward
    return lambda *given: run(*inputs(given)[:-1])


class Compiled:
    """A graph of torch.compile: a network for each kind of inputs, torch's own functions where there is none."""

    def __init__(self, module: Any, static: Sequence[bool], options: dict[str, Any]) -> None:
        self.module, self.options = module, options
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.fixed = {node for node, each in zip(places, static, strict=True) if each}
        self._parameters = operator.itemgetter(*(at for at, each in enumerate(static) if each), slice(0))
        self._moving = [at for at, each in enumerate(static) if not each]
        self._kinds: dict[Any, tuple[Any, Any]] = {}
        self._seen = set[Any]()
        """Kinds of inputs of a graph whose sizes vary, which are planned when they come again: not each length of text
        that is generated."""
        self.why = ""
        """Why the latest kind of inputs runs by torch; empty where it does not."""

    def __call__(self, *inputs: Any) -> Any:
        moving = [inputs[at] for at in self._moving]
        key = tuple((x.shape, x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else x for x in moving)
        static = self._parameters(inputs)[:-1]
        fixed = [*map(_POINTER, static)]
        with contextlib.suppress(RuntimeError):  # tensors of inference mode, which have none
            fixed += map(_VERSION, static)
        parts, of = self._kinds.get(key, (None, None))
        if of == fixed or (of is not None and parts is None):
            return (parts or self.module)(*inputs)
        varies = not all(isinstance(x, torch.Tensor) for x in moving)
        if of is None and (len(self._kinds) >= MOST_KINDS or (varies and key not in self._seen)):
            if len(self._seen) < _MOST_SEEN:
                self._seen.add(key)
            return self.module(*inputs)
        parts, answer = self._planned(inputs)
        self._kinds[key] = parts, fixed
        return answer

    def _planned(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """What runs for such inputs, None where torch does, and what the graph gives for them."""
        try:
            parameters = {id(x) for x in inputs if isinstance(x, torch.nn.Parameter)}
            # in place of inference mode, whose tensors do not say what is written to them
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(_devices(inputs)):
                given = [x.clone() if isinstance(x, torch.Tensor) and id(x) not in parameters else x for x in inputs]
                parts, answer = _parts(self.module, self.fixed, given, self.options)
                pairs = zip(parts(*given), answer, strict=True)
                if not all(same_numbers(x, y) for x, y in pairs if isinstance(x, torch.Tensor)):
                    raise Unknown("the network gives other numbers than torch")
        except Exception as error:  # torch runs the graph then, and raises what is to be raised
            self.why = str(error).partition("\n")[0]
            nodes = len(self.module.graph.nodes)
            warnings.warn(f"numbaprims: torch runs a graph of {nodes} nodes itself: {self.why}", stacklevel=2)
            return None, self.module(*inputs)
        self.why = ""
        return parts, answer


def backend(module: Any, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Compile a graph of torch.compile for inference, as `fuse` plans modules: a backend of ``torch.compile``.

    ``torch.compile(net, backend="numbaprims")`` finds it by name where the package is installed; called under
    `torch.no_grad()` or in inference mode. The graph is planned at its first call, for the sizes of its inputs, once
    for each kind of them (8 at most; where torch lets sizes vary, when one comes again). The plan holds copies of the
    parameters and is made anew where these have changed. Its results are compared with torch's when it is made; what
    cannot be planned runs by torch, with a warning that says why.

    Args:
        module: a graph of torch's functions.
        inputs: examples; parameters are among them.
        options: ``strategy``, ``limit`` and ``exact`` of `numbaprims.fuse`.

    Returns:
        What runs the graph; with gradients or autocast the graph as it is.

    Raises:
        TypeError: another option.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
        >>> fast = torch.compile(net, backend=backend)
        >>> with torch.no_grad():
        ...     fast(torch.ones(2, 8)).shape
        torch.Size([2, 4])
    """
    unknown = (options or {}).keys() - {"strategy", "limit", "exact"}
    if unknown:
        raise TypeError(f"options has {min(unknown)!r}; it takes exact, limit, strategy")
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    why = ""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        why = "it records gradients; call under torch.no_grad()"
    elif any(torch.is_autocast_enabled(x.device.type) for x in tensors):
        why = "autocast is on"
    if why:
        warnings.warn(f"numbaprims: torch runs a graph of {len(module.graph.nodes)} nodes itself: {why}", stacklevel=2)
        return module
    static = [isinstance(x, torch.nn.Parameter) or hasattr(x, "_dynamo_static_input_type") for x in inputs]
    return Compiled(module, static, options or {})
