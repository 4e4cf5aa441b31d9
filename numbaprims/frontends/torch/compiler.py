"""`backend`: graphs of torch.compile as fused networks."""

from __future__ import annotations

import collections
import contextlib
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

import numbaprims
from numbaprims.frontends.torch.fuse import layer_of
from numbaprims.frontends.torch.fuse_calls import IN_PLACE
from numbaprims.frontends.torch.fuse_graph import Reader, Unknown, is_written
from numbaprims.frontends.torch.fuse_trace import kept, output_of, read_ones, same_numbers
from numbaprims.fusion import layers

#: Networks that a graph has, one for each kind of inputs; further ones run by torch.
MOST_KINDS = 8
_MOST_SEEN = 1000
#: How often a kind comes of a graph whose sizes vary until it is planned, which takes as long as 20 to 50 calls.
OFTEN = 3
#: Calls that are worth a plan.
_WORTH = 20

_POINTER, _VERSION = operator.methodcaller("data_ptr"), operator.attrgetter("_version")
#: Functions that read the size of a tensor only.
_BY_SIZE = ("new_zeros", "new_ones", "new_full", torch.zeros_like, torch.ones_like, torch.full_like)
_SIZES = ("size", "dim", "numel", getattr)


def _of_sizes(n: Any, value: Any) -> bool:
    """Whether a node reads sizes only, which are fixed where a graph is planned; so are inputs that are numbers."""
    return n.target in _BY_SIZE or (
        not isinstance(value, torch.Tensor) and (n.op == "placeholder" or n.target in _SIZES)
    )


class _Written(Unknown):
    """What is computed once has been written to: parts of inputs, or by what reads an input."""

    def __init__(self, nodes: set[Any], name: str) -> None:
        super().__init__(f"{name} writes to what is computed once")
        self.nodes = nodes


def _place(x: Any) -> int:
    """Where the memory of a tensor begins, -1 of anything else."""
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
        self.places: dict[Any, int] = {}
        """Where the memory of a tensor begins."""
        self.stained: dict[int, list[int]] = {}
        """Memory that these write to, and where in the graph."""
        self.order = {node: at for at, node in enumerate(module.graph.nodes)}

    def run_node(self, n: Any) -> Any:
        given = n.all_input_nodes
        read = [(each, self.env[each]) for each in given if is_written(self.env[each])]
        versions = [x._version for _, x in read]
        value = super().run_node(n)
        written = {each: _place(x) for (each, x), version in zip(read, versions, strict=True) if x._version != version}
        touched = {each for each in self.fixed if _place(self.env.get(each)) in written.values()} if written else set()
        if any(each.op in ("placeholder", "get_attr") for each in touched) or (
            touched and not self.fixed.issuperset(given)
        ):
            raise _Written(touched, n.name)
        if not self.before.isdisjoint(written):
            self.writing.append(n)
            for place in written.values():
                self.stained.setdefault(place, []).append(self.order[n])
        if n.op == "output":
            return value
        self.places[n] = _place(value)
        once = n.op != "placeholder" and all(each in self.fixed for each in given)
        if (once or _of_sizes(n, value)) and n not in self.moving:
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
        self.shapes: dict[Any, tuple[int, ...]] = {}
        """Tensors that it may be called with."""

    def run_node(self, n: Any) -> Any:
        if n in self.kinds.fixed and not all(each in self.constants for each in n.all_input_nodes or [n]):
            value = torch.fx.Interpreter.run_node(self, n)
            self.constants[n] = value.detach() if isinstance(value, torch.Tensor) else value
            return value
        if n in self.kinds.before or n in self.kinds.begin:
            value = torch.fx.Interpreter.run_node(self, n)
            if n is self.first:
                self.numbers[n] = 0
            elif isinstance(value, torch.Tensor):
                self.shapes[n] = tuple(value.shape)
                if n in self.kinds.begin and self._is_batch(value):
                    self._give(n)
            self.images[n] = tuple(value.shape[1:]) if isinstance(value, torch.Tensor) else ()
            return value
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n not in self.numbers and n not in self.constants:
            if all(each.op == "output" for each in n.users):  # a result that is no batch, as a loss
                self._called(n, value)
        return value

    def _once(self, value: Any) -> Any:
        images = len(self.example)
        if not isinstance(value, torch.Tensor) or value.ndim < 2 or len(value) != images:
            return value
        return value[:1] if torch.equal(value, value[:1].expand_as(value)) else value

    def may_write(self, node: Any) -> bool:
        """An input that is written to is given to the network, which has it written to in its turn."""
        return node.args[0] in self.given or node.args[0] is self.first

    def _give(self, n: Any) -> None:
        self.given.append(n)
        self._add(n, layers.Given(self.shapes[n]))

    def _is_value(self, node: Any) -> bool:
        if node not in self.numbers and (node in self.kinds.before or node in self.kinds.begin):
            if node not in self.shapes:
                raise Unknown(f"{node.name} is a number of each call")
            self._give(node)
        return node in self.numbers


class _Parts(NamedTuple):
    """What runs of a graph for inputs of some sizes."""

    before: Any
    """Of the inputs: x, what is given beside it, and the results that the network has no part in."""
    network: Any
    given: int
    results: tuple[tuple[str, Any], ...]
    """Of each result, who gives it: ("network", "rows" of it, or "before", its number), or ("value", itself)."""
    orders: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Results that lie in another order than torch's, which may be asked for views, and torch's strides."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        found = self.before(*inputs)  # and behind them what writes to them gives
        y = self.network(*found[: 1 + self.given])
        of = {"network": y if isinstance(y, tuple) else (y,), "before": found}
        if any(kind == "rows" for kind, _ in self.results):
            of["rows"] = tuple(each.flatten(0, 1) if each.ndim > 1 else each for each in of["network"])
        # what is computed once is the plan's own
        given = [_fresh([value])[0] if kind == "value" else of[kind][value] for kind, value in self.results]
        for at, stride in self.orders:
            given[at] = given[at].new_empty_strided(given[at].shape, stride).copy_(given[at])
        return tuple(given)

    def ordered(self, found: Sequence[Any], answer: Sequence[Any]) -> _Parts:
        """With the strides of torch's results."""
        pairs = [(at, x, y) for at, (x, y) in enumerate(zip(found, answer, strict=True)) if isinstance(x, torch.Tensor)]
        return self._replace(
            orders=tuple((at, y.stride()) for at, x, y in pairs if _steps(x) != _steps(y) and _is_dense(y))
        )


def _steps(x: Any) -> tuple[int, ...]:
    """The strides of a tensor that matter."""
    return tuple(step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1) if x.numel() else ()


def _is_dense(x: Any) -> bool:
    """Whether the elements of a tensor lie side by side, in some order."""
    return bool(1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) == x.numel())


def _fresh(inputs: Sequence[Any]) -> list[Any]:
    """Copies of what a graph may write to; it writes to no parameter."""
    return [x.clone() if isinstance(x, torch.Tensor) and not isinstance(x, torch.nn.Parameter) else x for x in inputs]


def _sorted(module: Any, fixed: set[Any], inputs: Sequence[Any]) -> tuple[_Values, Any, list[Any]]:
    """The nodes of a graph by what they read, what it gives, and what it was given, as it is then."""
    moving = set[Any]()
    inputs_of = dict(zip(_places(module), inputs, strict=True))
    while True:
        values, given = _Values(module, fixed, moving), _fresh(inputs)
        try:
            return values, values.run(*given), given
        except _Written as error:
            own = any(n.op == "get_attr" or isinstance(inputs_of.get(n), torch.nn.Parameter) for n in error.nodes)
            if own or error.nodes <= moving:
                raise
            moving |= error.nodes
            fixed = fixed - moving


def _places(module: Any) -> list[Any]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


class _Planned(NamedTuple):
    """A graph that has a network."""

    parts: _Parts
    fixed: set[Any]
    """Inputs whose values it holds."""
    writes: bool
    """Whether it writes to inputs."""
    answer: Any
    """What the graph gives."""


def _planned(module: Any, fixed: set[Any], inputs: Sequence[Any], options: dict[str, Any]) -> _Planned:
    """The network of a graph, which gives what the graph gives for the inputs; these are not written to.

    Raises:
        Unknown: nothing in it is a batch of floats, it draws random numbers, or writes where that is not followed; or
            the network gives other numbers.
    """
    own = {n for n, x in zip(_places(module), inputs, strict=True) if isinstance(x, torch.nn.Parameter)}
    for n in module.graph.nodes:
        name = str(getattr(n.target, "__name__", n.target))
        if name == "_enter_autocast":
            raise Unknown("autocast is on in it")
        if name.endswith("_increment_nesting"):  # which is to be left again, whatever happens
            raise Unknown("functions of torch.func are in it")
        written = n.target in IN_PLACE or n.target is operator.setitem or name.endswith("_")
        if written and n.op != "placeholder" and n.args and n.args[0] in own:
            raise Unknown(f"{n.name} writes to a parameter")
    state = torch.random.get_rng_state()
    values, answer, after = _sorted(module, fixed, inputs)
    if not torch.equal(state, torch.random.get_rng_state()):
        raise Unknown("it draws random numbers")
    writes = any(x._version for x in after if is_written(x) and not isinstance(x, torch.nn.Parameter))
    places = [_place(x) for x in inputs if isinstance(x, torch.Tensor)]
    if writes and len(set(places)) < len(places):
        raise Unknown("it writes to one of several inputs that may share their memory")
    if not values.begin:
        raise Unknown("nothing in it is a batch of floats")
    first = max(values.begin, key=lambda n: values.begin[n].numel())
    reader = _Compiled(module, values, first)
    reader.run(*_fresh(inputs))
    copied = {n for n in (first, *reader.given) if _is_early(n, values)}
    if all(isinstance(layer, layers.Call) for layer, reads in reader.steps if reads):
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
            results.append(("rows" if node in reader.rows else "network", len(wanted)))
            wanted.append(reader.numbers[node])
        else:
            raise Unknown(f"{node.name} is no batch of values")
    if not wanted:
        raise Unknown("nothing that it gives is computed of a batch of floats")
    wanted += [reader.numbers[n] for n in reader.writing if reader.may_write(n)]  # also what nobody reads
    steps, wanted = read_ones(reader.steps, wanted)
    network = numbaprims.fuse(
        layers.Wired(steps, wanted), tuple(reader.example.shape), dtype=reader.example.dtype, **options
    )
    before = _only(module, [*outside, *values.writing], reader.constants, copied)
    parts, given = _Parts(before, network, len(reader.given), tuple(results)), _fresh(inputs)
    found = parts(*given)
    pairs = [*zip(found, answer, strict=True), *(zip(given, after, strict=True) if writes else ())]
    if not all(same_numbers(x, y) for x, y in pairs if isinstance(x, torch.Tensor)):
        raise Unknown("the network gives other numbers than torch")
    return _Planned(parts.ordered(found, answer), values.fixed & fixed, writes, answer)


def _devices(inputs: Sequence[Any]) -> list[Any]:
    """The GPUs of tensors, which draw random numbers of their own."""
    return [*{x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda}]


def _is_early(n: Any, values: _Values) -> bool:
    """Whether the network reads what a node is before its memory is written to, and so a copy of it."""
    writes = values.stained.get(values.places[n], ())
    reads = [values.order[each] for each in n.users if each not in values.before]
    if not writes or not reads or min(reads) > max(writes):
        return False
    if max(reads) > min(writes):
        raise Unknown(f"{n.name} is written to while the network reads it")
    return True


def _only(module: Any, nodes: Sequence[Any], constants: dict[Any, Any], early: set[Any]) -> Any:
    """The part of a graph that computes some of its nodes, of `early` ones copies as they are first."""
    needed, graph, copied = set[Any](), torch.fx.Graph(), dict[Any, Any]()
    root, places, first = torch.nn.Module(), _places(module), dict[Any, Any]()

    def need(node: Any) -> None:
        if node not in needed:
            needed.add(node)
            for each in () if node in constants else node.all_input_nodes:
                need(each)

    for node in nodes:
        need(node)
    inputs = operator.itemgetter(*(at for at, node in enumerate(places) if node in needed), slice(0))  # always a tuple
    if needed.issubset(places) and not early:
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
        if node in early:
            first[node] = graph.call_method("clone", (copied[node],))
    graph.output(tuple(first.get(node, copied[node]) for node in nodes))
    run = torch.fx.GraphModule(root, graph).forward
    return lambda *given: run(*inputs(given)[:-1])


class Compiled:
    """A graph of torch.compile: a network for each kind of inputs, torch's own functions where there is none."""

    def __init__(self, module: Any, static: Sequence[bool], options: dict[str, Any]) -> None:
        self.module, self.options = module, options
        self._own = *module.parameters(), *module.buffers()
        """What is part of the graph and no input: of torch 2.4, and where its own compiler is to hold weights."""
        self._fix({node for node, each in zip(_places(module), static, strict=True) if each})
        self._kinds: dict[Any, tuple[Any, Any]] = {}
        self._calls, self._wasted = 0, 0
        """Calls of the latest plan, and how many plans in turn had few, since parameters had changed."""
        self._seen = collections.Counter[Any]()
        """How often kinds of inputs came where sizes vary: of a text that grows, not each length is planned."""
        self.why = ""
        """Why the latest kind of inputs runs by torch; empty where it does not."""

    def _fix(self, fixed: set[Any]) -> None:
        """Hold the values of some inputs."""
        self._fixed, places = fixed, _places(self.module)
        self._parameters = operator.itemgetter(*(at for at, node in enumerate(places) if node in fixed), slice(0))
        self._moving = [at for at, node in enumerate(places) if node not in fixed]

    def _state(self, inputs: Sequence[Any]) -> tuple[Any, Any, bool]:
        """The kind of inputs, where the parameters are and how often they were written to, and whether sizes vary."""
        moving, static = [inputs[at] for at in self._moving], (*self._parameters(inputs)[:-1], *self._own)
        key = tuple((x.shape, x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else x for x in moving)
        held = [*map(_POINTER, static)]
        with contextlib.suppress(RuntimeError):  # tensors of inference mode, which do not say it
            held += map(_VERSION, static)
        return key, held, not all(isinstance(x, torch.Tensor) for x in moving)

    def __call__(self, *inputs: Any) -> Any:
        key, held, varies = self._state(inputs)
        parts, of = self._kinds.get(key, (None, None))
        if of == held or (of is not None and parts is None):
            self._calls += 1
            return (parts or self.module)(*inputs)
        if of is not None:
            self._wasted, self._calls = self._wasted + 1 if self._calls < _WORTH else 0, 0
        else:
            self._seen[key] += varies and len(self._seen) < _MOST_SEEN
            if len(self._kinds) >= MOST_KINDS or (varies and self._seen[key] < OFTEN):
                return self.module(*inputs)
        found = None
        if self._wasted < MOST_KINDS:
            found = self._planned(inputs)
        else:
            self._left("its parameters change all the time")
        key, held, _ = self._state(inputs)  # of inputs that the graph writes to none is held
        self._kinds[key] = found and found.parts, held
        if found is None:
            return self.module(*inputs)
        return found.parts(*inputs) if found.writes else found.answer

    def _planned(self, inputs: Sequence[Any]) -> _Planned | None:
        """What runs for such inputs, None where torch does."""
        try:
            # in place of inference mode, whose tensors do not say what is written to them
            with torch.inference_mode(False), torch.no_grad(), kept(self.module, _devices(inputs)):
                found = _planned(self.module, self._fixed, inputs, self.options)
        except Exception as error:  # torch runs the graph then, and raises what is to be raised
            self._left(str(error).partition("\n")[0])
            return None
        self.why = ""
        if found.fixed != self._fixed:
            self._fix(found.fixed)
        return found

    def _left(self, why: str) -> None:
        """Say why torch runs the graph."""
        self.why = why
        nodes = len(self.module.graph.nodes)
        warnings.warn(f"numbaprims: torch runs a graph of {nodes} nodes itself: {why}", stacklevel=3)


def backend(module: Any, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Compile a graph of torch.compile for inference, as `fuse` plans modules: a backend of ``torch.compile``.

    ``torch.compile(net, backend="numbaprims")`` finds it by name where the package is installed; called under
    `torch.no_grad()` or in inference mode. The graph is planned at its first call, for the sizes of its inputs, once
    for each kind of them (8 at most; where torch lets sizes vary, when one comes the third time). The plan holds copies
    of the parameters and is made anew where these have changed. Its results are compared with torch's when it is made;
    what cannot be planned runs by torch, with a warning that says why.

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
