"""`lstm.plan`, `gru.plan`, `rnn.plan`: a recurrent network whose weights are packed once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from numbaprims import arrays, forks, settings
from numbaprims.dispatch import registry
from numbaprims.dispatch.choose import Posed, Trial
from numbaprims.ops._activation_call import forward
from numbaprims.ops._rnn_call import in_rows, options_of, tables_in
from numbaprims.ops._rnn_pose import Options, forward_of
from numbaprims.ops.plans import Plan
from numbaprims.ops.primitive import scalar
from numbaprims.recurrent.parts import RnnPart, plain
from numbaprims.recurrent.weights import RnnWeights

#: Products of bytes whose sums are within 32 bits.
_WIDEST = (1 << 31) // (255 * 127)


class _Kept:
    """A plan's weights, and what was made of them."""

    def __init__(self, weights: RnnWeights, options: tuple[Any, ...]) -> None:
        self.weights, self.options = weights, options
        self.arrays = tuple(array for part in weights.parts for array in part)
        #: What calls say once the weights are packed, and the packed copy.
        self.ready: tuple[tuple[Any, ...], Any] | None = None


class RnnPlan(Plan):
    """``plan(x)`` is ``lstm(x, weights, ...)`` with the weights packed once, for any steps, batch and lengths.

    The plan owns its copies: a later change of an array of `weights` does not reach it until `update`.  It may be
    called from several threads, and pickles its arguments (the weights themselves, not the packed copy).

    Args:
        cell: "lstm", "gru" or "rnn": whose `plan` this is.
        weights: `RnnWeights` of this cell.
        batch_first: as in `numbaprims.lstm`; so are `reverse`, `merge` and `clip`.
        reverse: as in `numbaprims.lstm`.
        merge: as in `numbaprims.lstm`.
        clip: as in `numbaprims.lstm`.
        quantize: "int8" for matrices of 8-bit integers, a scale a row, and rows of x and of states likewise in each
            call; None for those that were given.

    Raises:
        TypeError, ValueError: as `numbaprims.lstm`; float64 or a GPU's arrays with `quantize`.

    Example:
        >>> import numpy as np, numbaprims
        >>> weights = numbaprims.RnnWeights.from_arrays("rnn_relu", np.ones((2, 3)), np.ones((2, 2)))
        >>> plan = numbaprims.rnn.plan(weights)
        >>> plan(np.ones((3, 1, 3)))[1].tolist()
        [[[21.0, 21.0]]]
    """

    def __init__(
        self,
        cell: str,
        weights: RnnWeights,
        *,
        batch_first: bool = False,
        reverse: bool = False,
        merge: str = "concat",
        clip: float | None = None,
        quantize: str | None = None,
    ) -> None:
        if quantize not in (None, "int8"):
            raise ValueError(f"quantize is {quantize!r}; it must be None or 'int8'")
        self._cell, self._quantize = cell, quantize
        self._arguments: dict[str, Any] = {
            "batch_first": batch_first, "reverse": reverse, "merge": merge, "clip": clip,
        }  # fmt: skip
        self._numbers = () if clip is None else (scalar(clip, "clip"),)
        self._lock = forks.lock()
        self._kept: _Kept | None = None
        self.update(weights)

    def update(self, weights: RnnWeights) -> None:
        """Take new values of the weights: same cell, shapes and dtype.

        Raises:
            TypeError: weights of another cell.
            ValueError: their shapes or dtype are not those of the plan.
        """
        options = options_of(self._cell, weights, **self._arguments)
        if self._quantize:
            options = options._replace(weights=self._quantize)
            _check_bytes(weights)
        if self._kept is not None and _form(weights) != _form(self._kept.weights):
            raise ValueError(f"weights are {weights}; this plan holds {self._kept.weights}")
        parts = tuple(RnnPart(*(None if x is None else _copy(plain(x)) for x in part)) for part in weights.parts)
        self._kept = _Kept(dataclasses.replace(weights, parts=parts), tuple(options))

    def __call__(
        self, x: Any, h0: Any = None, c0: Any = None, *, lengths: Any = None, batch_sizes: Any = None, out: Any = None
    ) -> Any:  # fmt: skip
        """Run the network.

        Args:
            x: as in `numbaprims.lstm`, of the library and dtype of the weights; so are the others.
            h0: the first states, or None for zeros.
            c0: of an LSTM, the same.
            lengths: (N,) integers: the steps of each sequence.
            batch_sizes: (T,) integers, where x is packed rows.
            out: where y goes.

        Returns:
            y, h_n, of an LSTM c_n.

        Raises:
            TypeError, ValueError: as `numbaprims.lstm`.
        """
        kept: Any = self._kept
        if c0 is not None and self._cell != "lstm":
            raise TypeError(f"c0 is given; {self._cell} has none")
        if h0 is not None or c0 is not None:
            h0, c0 = in_rows((h0, c0))
        packed = tables = None
        if lengths is not None or batch_sizes is not None:
            tables, packed = tables_in(x, lengths, batch_sizes, self._arguments["batch_first"])
        options, prepared = kept.ready or self._prepare(kept, (x, h0, c0, tables, None), packed)
        if packed is not None:
            options = (*options[:-2], packed, options[-1])
        given = x, h0, c0, tables, None, prepared, *kept.arrays
        return forward_of(len(kept.weights.parts))(given, options, self._numbers, out)

    def _prepare(self, kept: _Kept, given: tuple[Any, ...], packed: Any) -> tuple[tuple[Any, ...], Any]:
        """Pack the weights at the first call that computes something: (options, the packed copy)."""
        library = kept.weights.library
        options = Options(*kept.options)._replace(weights=self._quantize or "prepared")
        try:
            with settings.trial(Trial()):
                primitive = forward_of(len(kept.weights.parts))
                primitive.run((*given, None, *kept.arrays), tuple(options._replace(packed=packed)), self._numbers)
        except Posed as posed:
            problem: Any = posed.problem
        # what is packed on the host is read by the host's kernels
        solver: Any = registry.prepared("rnn", library.device) if library.device == "cpu" else None
        if problem.empty:
            return kept.options, None
        with self._lock:
            if kept.ready is None and solver is None:
                kept.ready = kept.options, None
            elif kept.ready is None:
                storages = [array for part in kept.weights.storages for array in part]
                memory = solver.prepare(problem, registry.target(library.device), {}, storages)
                kept.ready = tuple(options), library.wrap(memory, "u8")
        return kept.ready

    def leading(self, ndim: int) -> int:
        raise TypeError("batches is a dask array, and a recurrent network gives several arrays; give its blocks")

    def __reduce__(self) -> tuple[Any, ...]:
        words = self._arguments | {"quantize": self._quantize}
        return _rebuild, (self._cell, self._kept.weights, words)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        w: Any = self._kept and self._kept.weights
        size = f"{w.input_size} -> {w.hidden_size}"
        return (
            f"<{self._cell} plan, {w.layers} layers, {w.directions} directions, {size}, {arrays.LONG_NAMES[w.dtype]}>"
        )


def _form(w: RnnWeights) -> Any:
    """What an update must leave."""
    shapes = tuple(None if x is None else tuple(x.shape) for part in w.parts for x in part)
    return w.cell, w.dtype, w.library, w.directions, w.reset_after, w.skip_input, shapes


def _check_bytes(w: RnnWeights) -> None:
    """Raise where weights cannot be 8-bit integers."""
    if w.dtype == "f64":
        raise TypeError("weights are float64; quantize='int8' takes float32, float16 and bfloat16")
    if w.library.device != "cpu":
        raise ValueError(f"the weights lie on {w.library.device}; quantize='int8' has kernels for CPUs alone")
    widest = max(w.hidden_size, *(w.sizes(layer) for layer in range(w.layers)))
    if widest > _WIDEST:
        raise ValueError(f"the weights have rows of {widest}; with quantize='int8' they have at most {_WIDEST}")


def _copy(array: Any) -> Any:
    """The plan's own: an array may change in place at any time."""
    return np.array(array, copy=True, order="C") if isinstance(array, np.ndarray) else forward((array,), "identity")


def _rebuild(cell: str, weights: RnnWeights, arguments: dict[str, Any]) -> RnnPlan:
    return RnnPlan(cell, weights, **arguments)


def planned(cell: str, x: Any, weights: RnnWeights, out: Any = None, **words: Any) -> Any:
    """What a plan computes; the plan itself is made at the first call of one set of arguments."""
    of_call = {name: words.pop(name) for name in ("lengths", "batch_sizes") if name in words}
    key = weights, repr(words)
    if key not in _plans:
        _plans.clear()  # a problem's calls follow one another
        _plans[key] = RnnPlan(cell, weights, **words)
    return _plans[key](x, **of_call, out=out)


_plans: dict[Any, RnnPlan] = {}
