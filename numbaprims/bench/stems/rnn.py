"""Recurrent networks against torch and onnxruntime: inference, and training forward and backward."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender, Workload
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.operands import on_host
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.recurrent.weights import RnnWeights
from numbaprims.reference import rnn as reference

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
GATES = {"lstm": 4, "gru": 3}


def _switches(options: Namespace, kind: str, row: Mapping[str, Any]) -> shared.Switches | None:
    """--steps-at-least, --steps-at-most, --n and --h take some rows of a suite."""
    taken = all(getattr(options, name) in (None, row[name]) for name in "nh")
    if not taken or not (options.steps_at_least or 1) <= row["t"] <= (options.steps_at_most or row["t"]):
        return None
    forms = shared.switched(options, "layers directions lengths", row)
    return (*(each for each in forms if each[1] is True or each[1] > 1), *shared.switched(options, "backward"))


#: `memory` counts all that is alive at a time.
EVERYTHING = True


def _elements(case: Case) -> float:
    """Weights: the operands, a plan's copy and its packed one, those of a call, of torch, of a session, and four of
    the model that it is made of; the definition's are twice as wide.  Rows: x as it is drawn, what each contender has
    returned, and the sums of all steps in torch and in a session.  In training what is kept, of torch too.
    """
    rows, gates, directions = case["t"] * case["n"], GATES.get(case["kind"], 1), case.get("directions", 1)
    layers, h = case.get("layers", 1), case["h"]
    width = case["i"] + h + (layers - 1) * h * (1 + directions)
    weights, y = gates * h * directions * width, rows * h * directions
    kept = 2.0 * layers * y * (2 * gates + 6) if case.get("backward") else 2.0 * gates * y
    return 12.0 * weights + 4 * rows * case["i"] + 8 * y + kept


# t steps of n sequences, i inputs, h hidden units
cases, memory = shared.cases("rnn", [("t", "n", "i", "h")], KINDS, _switches), shared.memory(_elements)


class Network:
    """The arrays of a case."""

    def __init__(self, case: Case, draw: Draw) -> None:
        self.case, self.kind = case, case["kind"]
        self.layers, self.directions = case.get("layers", 1), case.get("directions", 1)
        t, n, i, h = (case[name] for name in "tnih")
        self.x = draw((t, n, i), -1.0, 1.0)
        rows, low = GATES.get(self.kind, 1) * h, float(h) ** -0.5
        self.arrays: list[dict[str, Any]] = []
        for part in range(self.layers * self.directions):
            width = i if part < self.directions else h * self.directions
            shapes = {"w_ih": (rows, width), "w_hh": (rows, h), "b_ih": (rows,), "b_hh": (rows,)}
            self.arrays.append({name: draw(shape, -low, low) for name, shape in shapes.items()})
        lists: dict[str, Any] = {name: [part[name].ours for part in self.arrays] for name in self.arrays[0]}
        self.weights = RnnWeights.from_arrays(self.kind, **lists, directions=self.directions)
        # evenly from 1 to T, in no order
        lengths = np.linspace(1, t, n).round().astype(np.int64)
        self.lengths = np.random.default_rng(0).permutation(lengths) if case.get("lengths") else None

    @property
    def function(self) -> str:
        return self.kind.partition("_")[0]


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; of training the gradient of x is what is looked at."""
    return _ours(Network(case, draw))


def _ours(net: Network) -> Ours:
    case, name = net.case, net.function
    take = shared.spread(case["n"], 4)
    reads = {"x": net.x}

    def definition(values: list[np.ndarray]) -> Any:
        lengths = None if net.lengths is None else net.lengths[take]
        y, *_, reserve = reference.forward(
            shared.exact(values[0])[:, take], net.weights, lengths=lengths, return_reserve=True
        )
        if not case.get("backward"):
            return y
        from numbaprims.reference.rnn_backward import backward

        return backward(np.ones_like(y), None, None, reserve)[0]

    def part(values: np.ndarray) -> np.ndarray:
        return values[:, take]

    words = {} if net.lengths is None else {"lengths": net.lengths}
    terms = case["i"] + case["h"] * min(case["t"], 50)
    if not case.get("backward"):
        forward = partial(getattr(numbaprims, name), net.x.ours, net.weights, **words)
        # a session and a plan have packed their weights before the first call
        plan = getattr(numbaprims, name).plan(net.weights)
        return Ours(lambda: plan(net.x.ours, **words)[0], reads, definition, part, terms, posed=forward)
    train, backward = getattr(numbaprims, f"{name}_train"), getattr(numbaprims, f"{name}_backward")
    y, *states, reserve = train(net.x.ours, net.weights, **words)
    dy, none = np.ones_like(y), [None] * len(states)

    def both() -> Any:
        reserve = train(net.x.ours, net.weights, **words)[-1]
        return backward(dy, *none, reserve)[0]

    return Ours(both, reads, definition, part, terms, posed=partial(backward, dy, *none, reserve))


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival."""
    net = Network(case, shared.drawn(case))
    made = _ours(net).workload(case, _torch(net) | _onnxruntime(net, threads) | _call(net))
    if case.get("backward"):
        made.flops *= 1.5  # the gradient has two products for each of the forward pass, which is timed with it
    made.bound = "fma"
    if case["n"] < 16 and case["h"] >= 256:
        # few sequences meet each recurrent weight once a step: reading these, of a cache if they fit, is the roof of
        # the steps, multiply-adds that of the products of all steps
        made.bound, made.parts = "read and fma", list(_parts(net))
        made.bytes = sum(nbytes for nbytes, _ in made.parts)
        made.level = sum(part["w_hh"].ours.nbytes for part in net.arrays) / net.layers
    return made


def _parts(net: Network) -> Iterator[tuple[float, float]]:
    """Bytes of weights and operations of the products, each followed by the next."""
    case, both = net.case, net.case.get("backward")
    steps, rows = case["t"], 2.0 * case["t"] * case["n"]
    for part in net.arrays:
        w, r = part["w_ih"].ours, part["w_hh"].ours
        yield w.nbytes, rows * w.size
        yield steps * r.nbytes, rows * r.size
        if both:
            yield steps * r.nbytes, rows * r.size
            yield w.nbytes, rows * (2 * w.size + r.size)


def _call(net: Network) -> dict[str, Contender]:
    """Our call, which packs its weights each time."""
    if net.case.get("backward"):
        return {}
    words = {} if net.lengths is None else {"lengths": net.lengths}
    call = partial(getattr(numbaprims, net.function), net.x.ours, net.weights, **words)
    return {"numbaprims call": shared.returned(np, lambda: call()[0])}


def _torch(net: Network) -> dict[str, Contender]:
    """Its module: oneDNN where torch takes it, packed sequences for lengths."""
    torch = shared.torch_module()
    if torch is None:
        return {}
    case, x = net.case, net.x.torch
    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    more = {} if net.kind in kinds else {"nonlinearity": net.kind[4:]}
    module = kinds.get(net.kind, torch.nn.RNN)(
        case["i"], case["h"], net.layers, bidirectional=net.directions == 2, dtype=x.dtype, device=x.device, **more
    )
    names = {"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
    with torch.no_grad():
        for at, part in enumerate(net.arrays):
            ending = f"_l{at // net.directions}" + "_reverse" * (at % net.directions)
            for name, array in part.items():
                getattr(module, names[name] + ending).copy_(array.torch)
    utils = torch.nn.utils.rnn
    lengths = None if net.lengths is None else torch.from_numpy(net.lengths)

    def run(x: Any) -> Any:
        if lengths is None:
            return module(x)[0]
        packed = module(utils.pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
        return utils.pad_packed_sequence(packed, total_length=case["t"])[0]

    def inference() -> Any:
        with torch.inference_mode():
            return run(x)

    given = x.clone().requires_grad_()
    dy = None

    def training() -> Any:
        nonlocal dy
        given.grad = None
        module.zero_grad(set_to_none=True)
        y = run(given)
        if dy is None:
            dy = torch.ones_like(y)
        y.backward(dy)
        return given.grad

    return {"torch": shared.returned(torch, training if case.get("backward") else inference)}


def _onnxruntime(net: Network, threads: int) -> dict[str, Contender]:
    """A node; its y is (T, directions, N, H), which its model brings into our order."""
    case = net.case
    inside = case.dtype == "f32" and net.layers == 1 and net.lengths is None and not case.get("backward")
    if not inside or not on_host():
        return {}
    w, r, b, _ = net.weights.to_onnx()
    constants: dict[str, Any] = {"w": w, "r": r, "b": b}
    attributes: dict[str, Any] = {"hidden_size": case["h"]}
    if net.directions == 2:
        attributes["direction"] = "bidirectional"
    if net.kind == "gru":
        attributes["linear_before_reset"] = 1
    shape = (case["t"], case["n"], net.directions * case["h"])
    constants["shape"] = np.array(shape, np.int64)
    if net.kind == "rnn_relu":
        return {}  # its activations are a list of texts, which our models do not write
    operator = {"lstm": "LSTM", "gru": "GRU"}.get(net.kind, "RNN")
    nodes = [
        Node(operator, ("x", "w", "r", "b"), "steps", attributes),
        Node("Transpose", ("steps",), "turned", {"perm": [0, 2, 1, 3]}),
        Node("Reshape", ("turned", "shape"), "y", {}),
    ]
    return shared.onnxruntime(nodes, net.x.values(), shape, threads, constants=constants)
