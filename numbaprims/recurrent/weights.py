"""The weights of a recurrent network in one container, whatever library they come from.

Gates lie below one another in torch's order: i f g o of an LSTM, r z n of a GRU. What another library orders otherwise
is re-ordered once, when it enters; everything else stays the caller's memory.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from numbaprims.arrays import NUMPY, Library, describe, enter, require_same
from numbaprims.dtypes import FLOATS, LONG_NAMES
from numbaprims.recurrent import parts as found_in
from numbaprims.recurrent.parts import RnnPart, check, ending, gates_of, plain


@dataclasses.dataclass(frozen=True, eq=False)
class RnnWeights:
    """The weights of a recurrent network: a cell, layers, directions, and the arrays of each.

    Made by `from_arrays`, `from_torch`, `from_onnx`, `from_miopen`, `from_onednn` or `from_keras`; the parts of several
    containers may be joined in one. Nothing is copied but what has its gates in another order: who changes an array
    changes the network. A container equals itself only.

    Args:
        cell: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        parts: an `RnnPart` a layer and direction, l0, l0_reverse, l1, ...: arrays of one library, device and dtype,
            which is float64, float32, float16 or bfloat16.
        directions: 1, or 2 for forward and reverse.
        reset_after: of a GRU, whether its reset gate scales the recurrent product (torch, cuDNN) or the state that goes
            into it (ONNX's linear_before_reset=0).
        skip_input: the first layer adds x to each gate without a product (miopenRNNskip), and has no w_ih.

    Raises:
        TypeError: what is no array, another dtype, arrays of two libraries or dtypes.
        ValueError: an unknown cell, an array that is missing or has another shape.

    Example:
        >>> import numpy as np, numbaprims
        >>> one = np.ones
        >>> weights = numbaprims.RnnWeights.from_arrays("gru", one((6, 5)), one((6, 2)), one(6), one(6))
        >>> weights
        RnnWeights(cell='gru', directions=1, reset_after=True, skip_input=False, layers=1, input_size=5,
                   hidden_size=2, proj_size=0, dtype='f64')
        >>> weights.parts[0].w_hh.shape
        (6, 2)

    References:
        Khan et al., MIOpen: An open source library for deep learning primitives, 2019, section IV.C.
    """

    cell: str
    parts: tuple[RnnPart, ...] = dataclasses.field(repr=False)
    directions: int = 1
    reset_after: bool = True
    skip_input: bool = False
    layers: int = dataclasses.field(init=False)
    input_size: int = dataclasses.field(init=False)
    """The width of x."""
    hidden_size: int = dataclasses.field(init=False)
    proj_size: int = dataclasses.field(init=False)
    """The width of h where it is projected, 0 where it is not."""
    dtype: str = dataclasses.field(init=False)
    """"f64", "f32", "f16" or "bf16"."""
    library: Library = dataclasses.field(init=False, repr=False)
    storages: tuple[RnnPart, ...] = dataclasses.field(init=False, repr=False)
    """The parts as kernels take them: NumPy arrays, halves as their bits, or views of the memory of a GPU."""

    def __post_init__(self) -> None:
        gates = gates_of(self.cell)
        if self.directions not in (1, 2):
            raise ValueError(f"directions is {self.directions!r}; it must be 1 or 2")
        if not self.reset_after and self.cell != "gru":
            raise ValueError(f"reset_after is False; {self.cell} has no reset gate")
        parts = tuple(RnnPart(*part) for part in self.parts)
        if not parts or len(parts) % self.directions:
            raise ValueError(f"parts has {len(parts)} elements; it must have one a layer and direction")
        first = parts[0]
        check("w_hh_l0", first.w_hh, (None, None), f"{gates} * hidden, hidden")
        hidden = int(first.w_hh.shape[0]) // gates
        if not hidden:
            raise ValueError(f"w_hh_l0 is a {describe(first.w_hh)}; it must have {gates} rows for each hidden unit")
        proj = width = 0
        if first.w_hr is not None:
            check("w_hr_l0", first.w_hr, (None, hidden), f"projection, {hidden}")
            proj = int(first.w_hr.shape[0])
        if not self.skip_input:
            check("w_ih_l0", first.w_ih, (gates * hidden, None), f"{gates * hidden}, input")
            width = int(first.w_ih.shape[1])
        self._set(parts=parts, layers=len(parts) // self.directions, hidden_size=hidden, proj_size=proj)
        self._set(input_size=hidden if self.skip_input else width)
        storages, dtype, library = self._entered()
        self._set(storages=storages, dtype=dtype, library=library)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _entered(self) -> tuple[tuple[RnnPart, ...], str, Library]:
        """The parts as storages, their dtype and library; every array is checked."""
        model = plain(self.parts[0].w_hh)
        _, dtype, library = enter(model, "w_hh_l0")
        if dtype not in FLOATS:
            allowed = ", ".join(LONG_NAMES[each] for each in FLOATS)
            raise TypeError(f"w_hh_l0 is a {describe(model)}; a network takes {allowed}")
        storages = []
        for k, part in enumerate(self.parts):
            shapes = self._shapes(k // self.directions)
            entered: list[Any] = []
            for field, array in part._asdict().items():
                name, shape = f"{field}_{ending(k, self.directions)}", shapes[field]
                if array is None or isinstance(shape, str):
                    if array is not None:
                        raise ValueError(f"{name} is a {describe(array)}; {shape}")
                    if not isinstance(shape, str):
                        raise ValueError(f"{name} is missing; it must have shape {shape}")
                    entered.append(None)
                    continue
                check(name, array, shape, str(shape)[1:-1])
                storage, *kind = enter(plain(array), name)
                if kind != [dtype, library]:
                    require_same(model, "w_hh_l0", plain(array), name)
                entered.append(storage)
            storages.append(RnnPart(*entered))
        return tuple(storages), dtype, library

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...] | str]:
        """The shapes of a layer's arrays, or why it has none."""
        rows = gates_of(self.cell) * self.hidden_size
        shapes: dict[str, tuple[int, ...] | str] = {
            "w_ih": (rows, self.sizes(layer)), "w_hh": (rows, self.out_size), "b_ih": (rows,), "b_hh": (rows,),
            "w_hr": (self.out_size, self.hidden_size), "peephole": (3, self.hidden_size),
        }  # fmt: skip
        if self.skip_input and not layer:
            shapes["w_ih"] = "with skip_input the first layer has none"
        for name in ("b_ih", "b_hh", "w_hr", "peephole"):
            if getattr(self.parts[0], name) is None:
                shapes[name] = f"{name}_l0 is None"
            elif self.cell != "lstm" and not name.startswith("b_"):
                shapes[name] = f"{self.cell} has none"
        return shapes

    def __reduce__(self) -> Any:
        return RnnWeights, (self.cell, self.parts, self.directions, self.reset_after, self.skip_input)

    @functools.cached_property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of all parts that are there, as kernels take them."""
        return tuple(array for part in self.storages for array in part if array is not None)

    @property
    def out_size(self) -> int:
        """The width of h, and of the outputs of one direction."""
        return self.proj_size or self.hidden_size

    def sizes(self, layer: int) -> int:
        """The width of a layer's input: behind the first, outputs of both directions side by side, or their sum.

        The w_ih of the second layer says which; all others agree.
        """
        if not layer:
            return self.input_size
        rows, width = gates_of(self.cell) * self.hidden_size, self.directions * self.out_size
        w_ih = self.parts[self.directions].w_ih
        if getattr(w_ih, "shape", ())[1:] == (self.out_size,):
            return self.out_size
        words = [f"{rows}, {n}" for n in dict.fromkeys((width, self.out_size))]
        check("w_ih_l1", w_ih, (rows, width), ") or (".join(words))
        return width

    # ---------------------------------------------------------------- from other libraries

    @classmethod
    def from_arrays(
        cls, cell: str, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None, *, w_hr: Any = None,
        peephole: Any = None, directions: int = 1, reset_after: bool = True, skip_input: bool = False,
    ) -> RnnWeights:  # fmt: skip
        """Take arrays in torch's order: each argument is one, or a sequence of one a layer and direction."""
        given = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh, "w_hr": w_hr, "peephole": peephole}
        columns = _columns(given, "w_hh")
        return cls(cell, tuple(map(RnnPart, *columns)), directions, reset_after, skip_input)

    @classmethod
    def from_torch(cls, module: Any) -> RnnWeights:
        """Take the parameters of a torch.nn LSTM, GRU, RNN, LSTMCell, GRUCell or RNNCell.

        On the CPU they are NumPy views of the tensors' memory, on a GPU and of bfloat16 the tensors themselves.
        """
        return cls(*found_in.from_torch(module))

    @classmethod
    def from_onnx(
        cls, cell: str, W: Any, R: Any, B: Any = None, P: Any = None, linear_before_reset: int = 0,
        direction: str = "forward",
    ) -> RnnWeights:  # fmt: skip
        """Take the inputs of an ONNX node LSTM (gates i o f c), GRU (z r h) or RNN: one layer.

        W is (D, gates * H, input), R (D, gates * H, H), B (D, 2 * gates * H) of the input and the state, P (D, 3 * H)
        of i, o, f. The weights of "reverse" are those of one direction; the call is told to go backwards.
        """
        directions = {"forward": 1, "reverse": 1, "bidirectional": 2}.get(direction)
        if directions is None:
            raise ValueError(f"direction is {direction!r}; it must be forward, reverse or bidirectional")
        parts = tuple(found_in.from_onnx(cell, W, R, B, P, directions))
        return cls(cell, parts, directions, cell != "gru" or bool(linear_before_reset))

    @classmethod
    def from_miopen(
        cls, cell: str, weights: Any, input_size: int, hidden_size: int, layers: int = 1, directions: int = 1, *,
        bias: bool = True, skip_input: bool = False,
    ) -> RnnWeights:  # fmt: skip
        """Take MIOpen's one buffer of parameters: gates i f o c, or z r n.

        Layer by layer the w_ih of each direction, then the w_hh of each; behind all matrices layer by layer b_ih and
        b_hh in the same way. With `skip_input` the first layer has no w_ih.
        """
        parts = found_in.from_miopen(cell, weights, input_size, hidden_size, layers, directions, bias, skip_input)
        return cls(cell, tuple(parts), directions, True, skip_input)

    @classmethod
    def from_onednn(
        cls, cell: str, weights_layer: Any, weights_iter: Any, bias: Any = None, *, peephole: Any = None,
        projection: Any = None, reset_after: bool = False,
    ) -> RnnWeights:  # fmt: skip
        """Take oneDNN's arrays in its logical order (ldigo): layers, directions, input, gates, output.

        Gates are i f c o, or u r o. bias is (layers, directions, gates, output), of lbr_gru (`reset_after`) with a
        fourth u'; peephole (layers, directions, 3, output) of i f o; projection (layers, directions, hidden,
        projection).
        """
        after = cell == "gru" and bool(reset_after)
        parts = tuple(found_in.from_onednn(cell, weights_layer, weights_iter, bias, peephole, projection, after))
        return cls(cell, parts, int(weights_layer.shape[1]), cell != "gru" or after)

    @classmethod
    def from_keras(
        cls, cell: str, kernel: Any, recurrent_kernel: Any, bias: Any = None, *, directions: int = 1,
        reset_after: bool = True,
    ) -> RnnWeights:  # fmt: skip
        """Take Keras' kernel (input, gates * H), recurrent_kernel (H, gates * H) and bias; gates i f c o, or z r h.

        bias is (gates * H,), of a GRU with `reset_after` (2, 3 * H). Each is one array, or a sequence of one a layer
        and direction.
        """
        after = cell == "gru" and bool(reset_after)
        columns = _columns({"kernel": kernel, "recurrent_kernel": recurrent_kernel, "bias": bias}, "recurrent_kernel")
        parts = [
            found_in.from_keras(cell, w, r, b, after, f"[{k}]" if len(columns[1]) > 1 else "")
            for k, (w, r, b) in enumerate(zip(*columns, strict=True))
        ]
        return cls(cell, tuple(parts), directions, cell != "gru" or after)

    def to_onnx(self, layer: int = 0) -> tuple[np.ndarray | None, ...]:
        """(W, R, B, P) of a layer for an ONNX node, NumPy arrays; B or P is None where the layer has none.

        A GRU's node needs `linear_before_reset=int(weights.reset_after)` beside them.
        """
        if self.proj_size or (self.skip_input and not layer):
            raise ValueError(f"ONNX has no {'projection' if self.proj_size else 'skip_input'}")
        if self.library.device != "cpu":
            raise ValueError(f"the weights lie on {self.library.device}; to_onnx takes those of the host")
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer is {layer}; it must be 0 to {self.layers - 1}")
        at = self.storages[layer * self.directions : (layer + 1) * self.directions]
        arrays = [RnnPart(*(x if x is None else NUMPY.wrap(x, self.dtype) for x in part)) for part in at]
        return found_in.to_onnx(self.cell, arrays)


def _columns(given: dict[str, Any], model: str) -> list[list[Any]]:
    """Arguments as lists of one array a layer and direction, as many as `model` has."""
    count = len(given[model]) if isinstance(given[model], (list, tuple)) else 1
    columns = []
    for name, each in given.items():
        column = [None] * count if each is None else list(each) if isinstance(each, (list, tuple)) else [each]
        if len(column) != count:
            raise ValueError(f"{name} has {len(column)} arrays and {model} {count}; give one a layer and direction")
        columns.append(column)
    return columns
