"""The arrays of one layer and direction, and how they are found in the weights of other libraries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims.arrays import NUMPY, describe, enter

#: Cell -> its gates.
CELLS = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# Where our gates, i f g o and r z n, stand in another library's order.
_ONNX = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2)}  # i o f c; z r h
_MIOPEN = {"lstm": (0, 1, 3, 2), "gru": (1, 0, 2)}  # i f o c; z r n
_OTHERS = {"gru": (1, 0, 2)}  # oneDNN's u r o, Keras' z r h; the LSTM of both is i f c o
_PEEPHOLE = (0, 2, 1)  # ONNX: i o f

_TORCH = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn", "LSTMCell": "lstm", "GRUCell": "gru", "RNNCell": "rnn"}


class RnnPart(NamedTuple):
    """The weights of one layer in one direction; None is what it has not."""

    w_ih: Any = None
    """(gates * hidden, width of the layer's input)"""
    w_hh: Any = None
    """(gates * hidden, hidden or projection)"""
    b_ih: Any = None
    """(gates * hidden,)"""
    b_hh: Any = None
    """(gates * hidden,): added to b_ih, but in the new gate of a GRU part of what the reset gate scales"""
    w_hr: Any = None
    """(projection, hidden)"""
    peephole: Any = None
    """(3, hidden), of the gates i, f, o"""


def ending(k: int, directions: int) -> str:
    """The name of part k: l0, l0_reverse, l1, ..."""
    return f"l{k // directions}{'_reverse' if k % directions else ''}"


def gates_of(cell: str) -> int:
    """The gates of a cell."""
    if cell not in CELLS:
        raise ValueError(f"cell is {cell!r}; it must be one of {', '.join(CELLS)}")
    return CELLS[cell]


def plain(array: Any) -> Any:
    """An array without what autograd records: weights are data until a call."""
    return array.detach() if getattr(array, "requires_grad", False) else array


def check(name: str, array: Any, shape: Sequence[int | None], words: str) -> None:
    """Raise unless an array has a shape, whose None fits any length."""
    enter(plain(array), name)
    have = tuple(array.shape)
    if len(have) != len(shape) or any(n not in (None, of) for n, of in zip(shape, have, strict=True)):
        raise ValueError(f"{name} is a {describe(array)}; it must have shape ({words})")


def ordered(array: Any, order: Sequence[int] | None) -> Any:
    """An array whose equal blocks of rows are taken in another order: itself where there is none."""
    if order is None or array is None:
        return array
    return array.reshape(len(order), -1, *array.shape[1:])[list(order)].reshape(array.shape)


def from_torch(module: Any) -> tuple[str, tuple[RnnPart, ...], int]:
    """(cell, parts, directions) of a module of torch.nn."""
    names = [base.__name__ for base in type(module).__mro__ if base.__module__ == "torch.nn.modules.rnn"]
    kind = next((name for name in names if name in _TORCH), None)
    if kind is None:
        raise TypeError(f"module is a {type(module).__name__}; it must be one of torch.nn's {', '.join(_TORCH)}")
    cell = f"rnn_{module.nonlinearity}" if kind.startswith("RNN") else _TORCH[kind]
    directions = 2 if getattr(module, "bidirectional", False) else 1
    count = getattr(module, "num_layers", 1) * directions
    endings = [""] if kind.endswith("Cell") else [f"_{ending(k, directions)}" for k in range(count)]
    words = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    return cell, tuple(RnnPart(*(_of_torch(module, word + each) for word in words)) for each in endings), directions


def _of_torch(module: Any, name: str) -> Any:
    """A parameter as a NumPy view; as a tensor on a GPU, and of bfloat16, which NumPy has not."""
    tensor = getattr(module, name, None)
    if tensor is None:
        return None
    tensor = tensor.detach()
    storage, dtype, library = enter(tensor, name)
    return tensor if library.device != "cpu" or dtype == "bf16" else NUMPY.wrap(storage, dtype)


def from_onnx(cell: str, w: Any, r: Any, b: Any, p: Any, directions: int) -> Iterator[RnnPart]:
    """The directions of ONNX's LSTM, GRU or RNN."""
    gates, order = gates_of(cell), _ONNX.get(cell)
    check("R", r, (directions, None, None), f"{directions}, {gates} * hidden, hidden")
    hidden = int(r.shape[2])
    rows = gates * hidden
    check("R", r, (directions, rows, hidden), f"{directions}, {rows}, {hidden}")
    check("W", w, (directions, rows, None), f"{directions}, {rows}, input")
    if b is not None:
        check("B", b, (directions, 2 * rows), f"{directions}, {2 * rows}")
    if p is not None:
        check("P", p, (directions, 3 * hidden), f"{directions}, {3 * hidden}")
    for d in range(directions):
        biases = (None, None) if b is None else (b[d][:rows], b[d][rows:])
        peephole = None if p is None else ordered(p[d].reshape(3, hidden), _PEEPHOLE)
        w_ih, w_hh, b_ih, b_hh = (ordered(x, order) for x in (w[d], r[d], *biases))
        yield RnnPart(w_ih, w_hh, b_ih, b_hh, peephole=peephole)


def to_onnx(cell: str, parts: Sequence[RnnPart]) -> tuple[np.ndarray | None, ...]:
    """(W, R, B, P) of the directions of a layer."""
    order = None if cell not in _ONNX else np.argsort(_ONNX[cell]).tolist()

    def stacked(name: str, order: Sequence[int] | None = order) -> np.ndarray | None:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.stack([ordered(x, order) for x in arrays])

    given = [stacked("b_ih"), stacked("b_hh")]
    some = next((b for b in given if b is not None), None)
    biases = [np.zeros_like(some) if b is None and some is not None else b for b in given]
    peephole = stacked("peephole", _PEEPHOLE)
    return (
        stacked("w_ih"), stacked("w_hh"), None if some is None else np.concatenate(biases, 1),  # type: ignore[arg-type]
        None if peephole is None else peephole.reshape(len(parts), -1),
    )  # fmt: skip


def from_miopen(
    cell: str, weights: Any, input_size: int, hidden_size: int, layers: int, directions: int, bias: bool, skip: bool
) -> Iterator[RnnPart]:
    """The layers and directions in MIOpen's buffer of parameters."""
    gates, order, at = gates_of(cell), _MIOPEN.get(cell), 0
    rows = gates * hidden_size
    widths = [0 if skip else input_size] + [directions * hidden_size] * (layers - 1)
    count = directions * rows * (sum(widths) + layers * (hidden_size + 2 * bias))
    check("weights", weights, (count,), f"{count},")

    def take(*shape: int) -> list[Any]:
        nonlocal at
        begin, at = at, at + directions * math.prod(shape)
        return [ordered(x, order) for x in weights[begin:at].reshape(directions, *shape)]

    matrices: list[Any] = []
    biases: list[Any] = []
    for layer, width in enumerate(widths):
        w_ih = [None] * directions if skip and not layer else take(rows, width)
        matrices += list(zip(w_ih, take(rows, hidden_size), strict=True))
    for _ in range(layers):
        biases += list(zip(take(rows), take(rows), strict=True)) if bias else [(None, None)] * directions
    for pair, both in zip(matrices, biases, strict=True):
        yield RnnPart(*pair, *both)


def from_onednn(cell: str, w: Any, u: Any, bias: Any, peephole: Any, projection: Any, after: bool) -> Iterator[RnnPart]:
    """The layers and directions of oneDNN's arrays (layers, directions, input, gates, output)."""
    gates, order = gates_of(cell), _OTHERS.get(cell)
    check("weights_layer", w, (None, None, None, gates, None), f"layers, directions, input, {gates}, hidden")
    layers, directions, _, _, hidden = shape = tuple(w.shape)
    front, words = (layers, directions), f"{layers}, {directions}"
    check("weights_iter", u, (*front, None, gates, hidden), f"{words}, recurrent, {gates}, {hidden}")
    for name, array, behind in (
        ("bias", bias, (gates + after, hidden)), ("peephole", peephole, (3, hidden)),
        ("projection", projection, (hidden, None)),
    ):  # fmt: skip
        if array is not None:
            check(name, array, (*front, *behind), f"{words}, {behind[0]}, {behind[1] or 'projection'}")
    for at in np.ndindex(*shape[:2]):
        w_ih, w_hh = (ordered(x[at].reshape(x.shape[2], gates * hidden).T, order) for x in (w, u))
        b_ih: Any = None
        b_hh: Any = None
        if bias is not None:
            b_ih = ordered(bias[at][:gates].reshape(gates * hidden), order)
        if bias is not None and after:  # u r o u': the recurrent bias of the other gates is in their first one
            b_hh = b_ih * 0
            b_hh[2 * hidden :] = bias[at][gates]
        w_hr = None if projection is None else projection[at].T
        yield RnnPart(w_ih, w_hh, b_ih, b_hh, w_hr, None if peephole is None else peephole[at])


def from_keras(cell: str, kernel: Any, recurrent: Any, bias: Any, after: bool, which: str) -> RnnPart:
    """One layer and direction of Keras, whose name ends in `which`."""
    gates, order = gates_of(cell), _OTHERS.get(cell)
    check(f"recurrent_kernel{which}", recurrent, (None, None), f"hidden, {gates} * hidden")
    rows = gates * int(recurrent.shape[0])
    check(f"recurrent_kernel{which}", recurrent, (None, rows), f"{rows // gates}, {rows}")
    check(f"kernel{which}", kernel, (None, rows), f"input, {rows}")
    two = after and cell == "gru"
    biases = [bias, None]
    if bias is not None:
        check(f"bias{which}", bias, (2, rows) if two else (rows,), f"2, {rows}" if two else f"{rows},")
        biases = [bias[0], bias[1]] if two else biases
    return RnnPart(*(ordered(x, order) for x in (kernel.T, recurrent.T, *biases)))
