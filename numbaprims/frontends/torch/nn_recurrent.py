"""Recurrent networks as modules; `numbaprims.frontends.torch.nn` gives them out."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from numbaprims.frontends.torch import recurrent as f
from numbaprims.frontends.torch.modules import twin
from numbaprims.recurrent.parts import RnnPart, ending
from numbaprims.recurrent.weights import RnnWeights

_SEEDS = (1 << 63) - 1
#: Module -> its tensors and what was made of them: to check them takes longer than a small call.
_KNOWN: weakref.WeakKeyDictionary[Any, tuple[list[Any], RnnWeights]] = weakref.WeakKeyDictionary()


def _cell(module: Any) -> str:
    """The cell of a module, after its base class."""
    kind = next(base.__name__ for base in type(module).__mro__ if base.__module__ == "torch.nn.modules.rnn")
    name = kind.removesuffix("Cell").lower()
    return f"rnn_{module.nonlinearity}" if name == "rnn" else name


def _weights(module: Any, ends: list[str], directions: int = 1) -> RnnWeights:
    """The parameters of a module, which are looked at anew where one of them is another tensor."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    arrays = [getattr(module, name + end, None) for end in ends for name in names]
    known = _KNOWN.get(module)
    if known is None or any(a is not b for a, b in zip(arrays, known[0], strict=True)):
        count = len(names)
        parts = tuple(RnnPart(*arrays[k * count : (k + 1) * count]) for k in range(len(ends)))
        known = _KNOWN[module] = arrays, RnnWeights(_cell(module), parts, directions)
    return known[1]


def _run(x: Any, weights: RnnWeights, states: Any, **words: Any) -> tuple[Any, Any]:
    """(y, the last states): those of an LSTM are two."""
    name = weights.cell.partition("_")[0]
    if "dropout" in words:
        y, *last, _ = getattr(f, f"{name}_train")(x, weights, *states, **words)
    else:
        y, *last = getattr(f, name)(x, weights, *states, **words)
    return y, last


class _Recurrent(torch.nn.RNNBase):
    """
    Example:
        >>> import torch
        >>> y, (h_n, c_n) = LSTM(3, 4, num_layers=2)(torch.ones(5, 1, 3))
        >>> y.shape, h_n.shape
        (torch.Size([5, 1, 4]), torch.Size([2, 1, 4]))
    """

    def forward(self, input: Any, hx: Any = None) -> Any:
        own: Any = self
        lstm, words, order, back = self.mode == "LSTM", dict[str, Any](), None, None
        x = input
        if isinstance(input, PackedSequence):
            x, sizes, order, back = input
            words["batch_sizes"] = sizes
        elif input.ndim not in (2, 3):
            raise ValueError(f"{self.mode}: Expected input to be 2D or 3D, got {input.ndim}D instead")
        else:
            words["batch_first"] = self.batch_first
        along = 0 if self.batch_first else 1
        single = not isinstance(input, PackedSequence) and x.ndim == 2
        states = () if hx is None else tuple(hx) if lstm else (hx,)
        if not isinstance(input, PackedSequence):
            for state in states:
                if state.ndim != x.ndim:
                    raise RuntimeError(f"For {x.ndim}-D input, hx should also be {x.ndim}-D but got {state.ndim}-D")
        if single:
            x, states = x.unsqueeze(along), tuple(state.unsqueeze(1) for state in states)
        if order is not None:
            states = tuple(state.index_select(1, order) for state in states)
        self.check_input(x, words.get("batch_sizes"))
        if states:
            own.check_forward_args(x, states if lstm else states[0], words.get("batch_sizes"))
        if self.training and self.dropout and self.num_layers > 1:
            # torch's generator decides, as it does for torch's own dropout
            words |= {"dropout": self.dropout, "seed": int(torch.randint(_SEEDS, ()))}
        directions = 2 if self.bidirectional else 1
        ends = [f"_{ending(k, directions)}" for k in range(self.num_layers * directions)]
        y, last = _run(x, _weights(self, ends, directions), states, **words)
        if single:
            y, last = y.squeeze(along), [state.squeeze(1) for state in last]
        if back is not None:
            last = [state.index_select(1, back) for state in last]
        if isinstance(input, PackedSequence):
            y = PackedSequence(y, *input[1:])
        return y, (tuple(last) if lstm else last[0])


LSTM, GRU, RNN = (twin(name, name.lower(), _Recurrent) for name in ("LSTM", "GRU", "RNN"))


class _Cell(torch.nn.modules.rnn.RNNCellBase):
    """A network of one step."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        lstm = isinstance(self, torch.nn.LSTMCell)
        states = () if hx is None else tuple(hx) if lstm else (hx,)
        for name, each in (("input", input), *(("hx", state) for state in states)):
            if each.ndim not in (1, 2):
                raise ValueError(f"{type(self).__name__}: Expected {name} to be 1D or 2D, got {each.ndim}D instead")
        single = input.ndim == 1
        if single:
            input, states = input[None], tuple(state.reshape(1, -1) for state in states)
        _, last = _run(input[None], _weights(self, [""]), tuple(state[None] for state in states))
        last = [state[0, 0] if single else state[0] for state in last]
        return tuple(last) if lstm else last[0]


LSTMCell, GRUCell, RNNCell = (twin(f"{name}Cell", name.lower(), _Cell) for name in ("LSTM", "GRU", "RNN"))
