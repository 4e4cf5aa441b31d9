"""Recurrent networks: LSTM, GRU and Elman's RNN over a batch of sequences, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from numbaprims.ops import examples
from numbaprims.ops._docs import documented
from numbaprims.ops._rnn_call import in_rows, options_of, random_of, tables_in
from numbaprims.ops._rnn_pose import Options, backward_of, forward_of
from numbaprims.ops._rnn_problem import GATES, RnnProblem as RnnProblem
from numbaprims.ops.plans import with_plan
from numbaprims.ops.primitive import problems
from numbaprims.recurrent.lengths import Lengths
from numbaprims.recurrent.parts import RnnPart
from numbaprims.recurrent.weights import RnnWeights

if TYPE_CHECKING:
    from numbaprims.ops.rnn_plan import RnnPlan


class RnnReserve(NamedTuple):
    """What a call in training leaves for its gradient."""

    x: Any
    weights: RnnWeights
    options: tuple[Any, ...]
    tables: Any
    random: Any
    numbers: tuple[float, ...]
    gates: Any
    saved: Any
    states: Any


def _call(
    cell: str, x: Any, weights: RnnWeights, h0: Any, c0: Any, lengths: Any, batch_sizes: Any, batch_first: bool,
    reverse: bool, merge: str, clip: float | None, way: str, out: Any = None,
    dropout: tuple[float, int, int] = (0.0, 0, 0),
) -> Any:  # fmt: skip
    options = options_of(cell, weights, batch_first, reverse, merge, clip, way)
    random = tables = None
    if lengths is not None or batch_sizes is not None:
        tables, packed = tables_in(x, lengths, batch_sizes, batch_first)
        options = options._replace(packed=packed)
    if way == "train":
        random = random_of(x, weights.layers, *dropout)
        options = options._replace(dropout=random is not None)
    h0, c0, *own = in_rows((h0, c0, *(array for part in weights.parts for array in part)))
    given = (x, h0, c0, tables, random, None, *own)
    numbers = (float(clip),) if clip is not None else (float(dropout[0]),) if options.dropout else ()
    found: Any = forward_of(len(weights.parts))(given, tuple(options), numbers, out)
    if way != "train":
        return found
    count = 3 if weights.cell == "lstm" else 2
    *kept, states = found[count:]
    gates, saved = (*kept, None, None)[:2]
    return (*found[:count], RnnReserve(x, weights, tuple(options), tables, random, numbers, gates, saved, states))


def _gradient(cell: str, dy: Any, dh_n: Any, dc_n: Any, reserve: RnnReserve) -> Any:
    if not isinstance(reserve, RnnReserve) or not reserve.weights.cell.startswith(cell):
        raise TypeError(f"reserve is a {type(reserve).__name__}; it must be what {cell}_train gave")
    weights = reserve.weights
    options = Options(*reserve.options)._replace(way="backward")
    dh_n, dc_n, *own = in_rows((dh_n, dc_n, *(array for part in weights.parts for array in part)))
    r = reserve
    given = (r.x, dy, dh_n, dc_n, r.gates, r.saved, r.states, r.tables, r.random, *own)
    gradients: Any = iter(backward_of(len(weights.parts))(given, tuple(options), reserve.numbers))
    count = 3 if weights.cell == "lstm" else 2
    results = [next(gradients) for _ in range(count)]
    parts = tuple(RnnPart(*(None if array is None else next(gradients) for array in part)) for part in weights.parts)
    return *results, parts


_COMMON = """
Args:
    x: (T, N, inputs), or (N, T, inputs) with `batch_first`; float64, float32, float16 or bfloat16, whose sums and
    states     are kept in float32 for the last two.
    weights: `RnnWeights` of this cell, in x's dtype and library.
    h0: the first states (layers * directions, N, width), of l0, l0_reverse, l1, ...; None for zeros.
    c0: the same of the cell.
    lengths: (N,) integers from 0 to T, in any order: the steps of each sequence. y is 0 behind its end, and the reverse
        direction begins there.
    batch_sizes: (T,) integers, where x is packed rows (sum of batch_sizes, inputs), as torch's PackedSequence holds
    them:     sequences from the longest to the shortest. y is packed too, and states are in this order.
    batch_first: whether x and y are (N, T, ...).
    reverse: whether a network of one direction goes from the last step to the first.
    merge: "concat" or "sum" of the two directions of each layer.
    clip: what goes into each gate is held between -clip and clip (ONNX); None for no bounds.
    out: where y goes.
Raises:
    TypeError: weights of another cell, dtype or library; integers.
    ValueError: arrays of another shape, lengths out of range, an unknown merge.
"""


def _plan(cell: str) -> Callable[..., RnnPlan]:
    def plan(weights: RnnWeights, **arguments: Any) -> RnnPlan:
        from numbaprims.ops.rnn_plan import RnnPlan

        return RnnPlan(cell, weights, **arguments)

    return plan


@with_plan(_plan("lstm"))
@documented(_COMMON)
def lstm(
    x: Any, weights: RnnWeights, h0: Any = None, c0: Any = None, *, lengths: Any = None, batch_sizes: Any = None,
    batch_first: bool = False, reverse: bool = False, merge: str = "concat", clip: float | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """Run a long short-term memory over sequences.

    ``i, f, g, o = s(W x + R h)``, ``c' = f c + i g``, ``h' = o tanh(c')``; s is the sigmoid, of g tanh. The weights may
    have peepholes (``p c`` is added to i and f, ``p c'`` to o) and a projection (``h' = W_hr (o tanh(c'))``).

    Returns:
        y (T, N, directions * width), h_n (layers * directions, N, width), c_n (layers * directions, N, hidden).

    Example:
        >>> import numpy as np, numbaprims
        >>> ones = np.ones
        >>> weights = numbaprims.RnnWeights.from_arrays("lstm", ones((8, 3)), ones((8, 2)), ones(8))
        >>> y, h_n, c_n = numbaprims.lstm(np.zeros((4, 1, 3)), weights, lengths=[2])
        >>> y[:, 0].round(4).tolist()
        [[0.3696, 0.3696], [0.727, 0.727], [0.0, 0.0], [0.0, 0.0]]

    References:
        Khan et al., MIOpen: An open source library for deep learning primitives, 2019, equations 1 to 12.
    """
    return _call("lstm", x, weights, h0, c0, lengths, batch_sizes, batch_first, reverse, merge, clip, "inference", out)


@with_plan(_plan("gru"))
@documented(_COMMON)
def gru(
    x: Any, weights: RnnWeights, h0: Any = None, *, lengths: Any = None, batch_sizes: Any = None,
    batch_first: bool = False, reverse: bool = False, merge: str = "concat", clip: float | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """Run gated recurrent units over sequences.

    ``r, z = sigmoid(W x + R h)``, ``n = tanh(W_n x + r (R_n h))``, ``h' = (1 - z) n + z h``; where the weights say
    ``reset_after=False`` it is ``R_n (r h)``.

    Returns:
        y (T, N, directions * hidden), h_n (layers * directions, N, hidden).

    Example:
        >>> import numpy as np, numbaprims
        >>> ones = np.ones
        >>> weights = numbaprims.RnnWeights.from_arrays("gru", ones((6, 3)), ones((6, 2)))
        >>> y, h_n = numbaprims.gru(ones((4, 1, 3)), weights)
        >>> h_n.round(4).tolist()
        [[[0.1573, 0.1573]]]

    References:
        Khan et al., MIOpen: An open source library for deep learning primitives, 2019, section IV.C.
    """
    return _call("gru", x, weights, h0, None, lengths, batch_sizes, batch_first, reverse, merge, clip, "inference", out)


@with_plan(_plan("rnn"))
@documented(_COMMON)
def rnn(
    x: Any, weights: RnnWeights, h0: Any = None, *, lengths: Any = None, batch_sizes: Any = None,
    batch_first: bool = False, reverse: bool = False, merge: str = "concat", clip: float | None = None, out: Any = None,
) -> Any:  # fmt: skip
    """Run Elman's recurrent network over sequences: ``h' = f(W x + R h)``, f tanh or relu as the weights' cell says.

    Returns:
        y (T, N, directions * hidden), h_n (layers * directions, N, hidden).

    Example:
        >>> import numpy as np, numbaprims
        >>> ones = np.ones
        >>> weights = numbaprims.RnnWeights.from_arrays("rnn_relu", ones((2, 3)), ones((2, 2)))
        >>> numbaprims.rnn(ones((3, 1, 3)), weights)[1].tolist()
        [[[21.0, 21.0]]]

    References:
        Khan et al., MIOpen: An open source library for deep learning primitives, 2019, section IV.C.
    """
    return _call("rnn", x, weights, h0, None, lengths, batch_sizes, batch_first, reverse, merge, clip, "inference", out)


_TRAIN = """
Args:
    dropout: the probability of an element to be dropped between two layers; what is kept is divided by 1 - dropout.
        Behind layer k it is ``numbaprims.philox.dropout_mask((T, N, width), dropout, seed, offset + k)``, the same on
        every device, whatever `batch_first` and the lengths.
    seed: of the random stream, 0 to 2**64 - 1.
    offset: of the stream, 0 to 2**64 - 1; a call takes those from `offset` to `offset + layers - 2`.
Returns:
    What the function without `_train` gives, and what the gradient reads: an `RnnReserve`.
"""


@documented(_COMMON, _TRAIN)
def lstm_train(
    x: Any, weights: RnnWeights, h0: Any = None, c0: Any = None, *, lengths: Any = None, batch_sizes: Any = None,
    batch_first: bool = False, reverse: bool = False, merge: str = "concat", dropout: float = 0.0, seed: int = 0,
    offset: int = 0,
) -> Any:  # fmt: skip
    """Run an LSTM as `lstm`, and keep what `lstm_backward` reads.

    Example:
        >>> import numpy as np, numbaprims
        >>> weights = numbaprims.RnnWeights.from_arrays("lstm", np.ones((8, 3)), np.ones((8, 2)))
        >>> y, h_n, c_n, reserve = numbaprims.lstm_train(np.ones((4, 1, 3)), weights)
        >>> y.shape, reserve.states.shape
        ((4, 1, 2), (1, 5, 2))
    """
    return _call(
        "lstm", x, weights, h0, c0, lengths, batch_sizes, batch_first, reverse, merge, None, "train", None,
        (dropout, seed, offset),
    )  # fmt: skip


@documented(_COMMON, _TRAIN)
def gru_train(
    x: Any, weights: RnnWeights, h0: Any = None, *, lengths: Any = None, batch_sizes: Any = None,
    batch_first: bool = False, reverse: bool = False, merge: str = "concat", dropout: float = 0.0, seed: int = 0,
    offset: int = 0,
) -> Any:  # fmt: skip
    """Run gated recurrent units as `gru`, and keep what `gru_backward` reads.

    Example:
        >>> import numpy as np, numbaprims
        >>> weights = numbaprims.RnnWeights.from_arrays("gru", np.ones((6, 3)), np.ones((6, 2)))
        >>> y, h_n, reserve = numbaprims.gru_train(np.ones((4, 1, 3)), weights)
        >>> y.shape, reserve.states.shape
        ((4, 1, 2), (1, 5, 2))
    """
    return _call(
        "gru", x, weights, h0, None, lengths, batch_sizes, batch_first, reverse, merge, None, "train", None,
        (dropout, seed, offset),
    )  # fmt: skip


@documented(_COMMON, _TRAIN)
def rnn_train(
    x: Any, weights: RnnWeights, h0: Any = None, *, lengths: Any = None, batch_sizes: Any = None,
    batch_first: bool = False, reverse: bool = False, merge: str = "concat", dropout: float = 0.0, seed: int = 0,
    offset: int = 0,
) -> Any:  # fmt: skip
    """Run a network as `rnn`, and keep what `rnn_backward` reads.

    Example:
        >>> import numpy as np, numbaprims
        >>> weights = numbaprims.RnnWeights.from_arrays("rnn_tanh", np.ones((2, 3)), np.ones((2, 2)))
        >>> y, h_n, reserve = numbaprims.rnn_train(np.ones((4, 1, 3)), weights)
        >>> y.shape, reserve.states.shape
        ((4, 1, 2), (1, 5, 2))
    """
    return _call(
        "rnn", x, weights, h0, None, lengths, batch_sizes, batch_first, reverse, merge, None, "train", None,
        (dropout, seed, offset),
    )  # fmt: skip


_BACKWARD = """
Args:
    dy: the gradient of y, or None for zeros.
    dh_n: of h_n, or None.
    dc_n: of c_n, or None.
    reserve: what the call in training gave.
Raises:
    TypeError: a reserve of another cell, other dtypes or libraries.
    ValueError: gradients of another shape.
References:
    Khan et al., MIOpen: An open source library for deep learning primitives, 2019, equations 13 to 21.
"""


@documented(_BACKWARD)
def lstm_backward(dy: Any, dh_n: Any, dc_n: Any, reserve: RnnReserve) -> Any:
    """Give the gradients of `lstm` by its inputs, first states and weights.

    Returns:
        dx, dh0, dc0, and for each layer and direction an `RnnPart` of the weights' gradients.

    Example:
        >>> import numpy as np, numbaprims
        >>> weights = numbaprims.RnnWeights.from_arrays("lstm", np.ones((8, 3)), np.ones((8, 2)))
        >>> y, h_n, c_n, reserve = numbaprims.lstm_train(np.zeros((4, 1, 3)), weights)
        >>> dx, dh0, dc0, (part,) = numbaprims.lstm_backward(np.ones_like(y), None, None, reserve)
        >>> dx.shape, part.w_hh.shape
        ((4, 1, 3), (8, 2))
    """
    return _gradient("lstm", dy, dh_n, dc_n, reserve)


@documented(_BACKWARD)
def gru_backward(dy: Any, dh_n: Any, reserve: RnnReserve) -> Any:
    """Give the gradients of `gru` by its inputs, first states and weights.

    Returns:
        dx, dh0, and for each layer and direction an `RnnPart` of the weights' gradients.

    Example:
        >>> import numpy as np, numbaprims
        >>> weights = numbaprims.RnnWeights.from_arrays("gru", np.ones((6, 3)), np.ones((6, 2)))
        >>> y, h_n, reserve = numbaprims.gru_train(np.ones((4, 1, 3)), weights)
        >>> dx, dh0, (part,) = numbaprims.gru_backward(np.ones_like(y), None, reserve)
        >>> dx.shape, part.w_hh.shape
        ((4, 1, 3), (6, 2))
    """
    return _gradient("gru", dy, dh_n, None, reserve)


@documented(_BACKWARD)
def rnn_backward(dy: Any, dh_n: Any, reserve: RnnReserve) -> Any:
    """Give the gradients of `rnn` by its inputs, first states and weights.

    Returns:
        dx, dh0, and for each layer and direction an `RnnPart` of the weights' gradients.

    Example:
        >>> import numpy as np, numbaprims
        >>> weights = numbaprims.RnnWeights.from_arrays("rnn_tanh", np.ones((2, 3)), np.ones((2, 2)))
        >>> y, h_n, reserve = numbaprims.rnn_train(np.ones((4, 1, 3)), weights)
        >>> dx, dh0, (part,) = numbaprims.rnn_backward(np.ones_like(y), None, reserve)
        >>> dx.shape, part.w_hh.shape
        ((4, 1, 3), (2, 2))
    """
    return _gradient("rnn", dy, dh_n, None, reserve)


def _example_call(problem: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    p = problem

    def weight(*shape: int) -> Any:
        return examples.array(shape, p.dtype, low=-0.1, high=0.1)

    # a problem that was stored has its fields alone
    state, wide, parts = p.projected or p.hidden, GATES[p.cell] * p.hidden, list[RnnPart]()
    width = state * (p.directions if p.merge == "concat" else 1)
    for k in range(p.layers * p.directions):
        layer = k // p.directions
        w_ih = None if p.skip_input and not layer else weight(wide, width if layer else p.inputs)
        w_hr = weight(p.projected, p.hidden) if p.projected else None
        parts.append(RnnPart(w_ih, weight(wide, state), weight(wide), weight(wide), w_hr, None))
    weights = RnnWeights(p.cell, tuple(parts), p.directions, p.reset_after, p.skip_input)
    words: dict[str, Any] = {"batch_first": p.order == "batch", "reverse": p.reverse, "merge": p.merge}
    shape: tuple[int, ...] = (p.batch, p.steps, p.inputs) if p.order == "batch" else (p.steps, p.batch, p.inputs)
    x = examples.array(shape, p.dtype)
    if p.lengths:
        words["lengths"] = _spread(p.rows, p.steps, p.batch)
    if p.order == "packed":
        sizes = Lengths.of(words.pop("lengths"), p.steps).batch_sizes
        words |= {"batch_sizes": sizes, "batch_first": False}
        x = examples.array((p.rows, p.inputs), p.dtype)
    elif p.order == "strided":
        x = examples.array((p.steps, p.batch + 1, p.inputs), p.dtype)[:, 1:]
    cell = p.cell.partition("_")[0]
    if p.way != "backward":
        if p.clipped:
            words["clip"] = 3.0
        if p.dropout:
            words["dropout"] = 0.5
        if p.weights != "given":
            from numbaprims.ops.rnn_plan import planned

            return planned, (cell, x, weights), words | ({"quantize": "int8"} if p.weights == "int8" else {})
        return cell + ("_train" if p.way == "train" else ""), (x, weights), words
    table: Any = {"lstm": lstm_train, "gru": gru_train, "rnn": rnn_train}
    if p.dropout:
        words["dropout"] = 0.5
    y, h_n, *c_n, reserve = table[cell](x, weights, **words)
    return f"{cell}_backward", (y, h_n, *c_n, reserve), {}


def _spread(rows: int, steps: int, batch: int) -> list[int]:
    """Lengths of a batch that have so many rows together, one of them of all steps."""
    found, left = [steps], rows - steps
    for k in range(batch - 1, 0, -1):
        found.append(min(steps, -(-left // k)))
        left -= found[-1]
    return found


PROBLEMS = problems(lstm, gru, rnn, lstm_train, gru_train, rnn_train, lstm_backward, gru_backward, rnn_backward)
EXAMPLES = {"rnn": _example_call}
