"""Connectionist temporal classification: the loss, its gradient, and decoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.ops import examples
from numbaprims.ops._cross_entropy import total
from numbaprims.ops._ctc_pose import Options, beside, lengths_of, reduction_of, run, sizes, table_of
from numbaprims.ops._ctc_problem import CtcProblem as CtcProblem
from numbaprims.ops._docs import documented
from numbaprims.ops.primitive import integer, problems, truth

_LOSS = documented("""
Args:
    log_probs: (T, N, C) logarithms of the probabilities of each class at each step, as `log_softmax` gives them along
        the last axis; float64, float32, float16 or bfloat16, any strides. What is computed in float32 keeps its
        exponents apart from its mantissas, so that no path is lost below 2**-126.
    targets: labels, classes other than `blank`: (N, S), of which each sequence takes its first; or all of them, one
        sequence behind the other. Integers, which are read on the host.
    input_lengths: (N,) integers from 0 to T: the steps of each sequence.
    target_lengths: (N,) integers: the labels of each sequence; 0 is for a sequence of blanks.
    blank: the class that is no label.
    reduction: "none"; "sum"; or "mean", where each loss is divided by its labels (at least 1) and all by N.
    zero_infinity: whether a loss is 0 where no path gives the target, because it has more labels and repetitions than
        there are steps; else it is infinite. Its gradient is 0 either way.
Raises:
    TypeError: log-probabilities that are no floats, lengths or labels that are no integers.
    ValueError: arrays of other shapes, lengths out of range, labels that are blank or no class, an unknown reduction.
References:
    Graves, Fernandez, Gomez and Schmidhuber, Connectionist Temporal Classification, 2006, equations 6 to 16.
""")


@_LOSS
def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *, blank: int = 0, reduction: str = "none",
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """Loss of sequences without alignment: ``-log p(target)``, the sum of ``prod_t exp(log_probs[t, path_t])`` over
    all paths that are the target once repetitions are merged and blanks taken away.

    Returns:
        The losses (N,), or their sum or mean (), of log_probs's dtype and library.

    Example:
        >>> import numpy as np, numbaprims
        >>> log_probs = np.log(np.full((2, 1, 2), 0.5))
        >>> numbaprims.ctc_loss(log_probs, [[1]], [2], [1]).round(4)  # three paths of four
        array([0.2877])
    """
    reduction_of(reduction)
    table, columns = table_of(log_probs, targets, input_lengths, target_lengths, blank)
    return loss_of(log_probs, table, columns, blank, reduction, zero_infinity)


def loss_of(log_probs: Any, table: Any, labels: int, blank: int, reduction: str, zero_infinity: Any) -> Any:
    """`ctc_loss` by a table of `labels` columns, at which nobody looks."""
    wide = reduction_of(reduction) != "none"
    infinity = truth(zero_infinity, "zero_infinity")
    losses = run((log_probs, table), Options("loss", blank, labels, wide, reduction == "mean", infinity))
    return total(losses, arrays.enter(log_probs, "log_probs")[1]) if wide else losses


@_LOSS
def ctc_loss_backward(
    dy: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *, blank: int = 0,
    reduction: str = "none", zero_infinity: bool = False, logits: bool = False, out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `ctc_loss`: ``dx[t, n, c] = -g_n gamma[t, n, c]``, how probable class c is at step t of a path that
    gives the target; exactly 0 from each sequence's length on.

    Args:
        dy: the gradient of the loss, of its shape; ``g`` is dy, divided as the loss was.
        logits: whether the gradient is that of scores whose log_softmax `log_probs` are:
            ``g_n (exp(log_probs) - gamma)``, what `log_softmax_backward` would make of it, in the same pass.
        out: where dx goes; it shares no memory with the arrays.

    Returns:
        dx, of log_probs's shape, dtype and library.

    Raises:
        ValueError: a dy of another shape, an `out` of another shape, or one that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> log_probs = np.log(np.full((2, 1, 2), 0.5))
        >>> numbaprims.ctc_loss_backward(np.ones(1), log_probs, [[1]], [2], [1])[:, 0].round(4)
        array([[-0.3333, -0.6667],
               [-0.3333, -0.6667]])
    """
    reduction_of(reduction)
    table, columns = table_of(log_probs, targets, input_lengths, target_lengths, blank)
    return gradient_of(dy, log_probs, table, columns, blank, reduction, zero_infinity, logits, out)


def gradient_of(
    dy: Any, log_probs: Any, table: Any, labels: int, blank: int, reduction: str, zero_infinity: Any, logits: Any,
    out: Any = None,
) -> Any:  # fmt: skip
    """`ctc_loss_backward` by a table of `labels` columns, at which nobody looks."""
    wide = reduction_of(reduction) != "none"
    if wide and arrays.enter(dy, "dy")[0].shape != ():
        raise ValueError(f"dy is a {arrays.describe(dy)}; with reduction={reduction!r} the loss has shape ()")
    infinity, logits = truth(zero_infinity, "zero_infinity"), truth(logits, "logits")
    options = Options("backward", blank, labels, wide, reduction == "mean", infinity, logits)
    return run((log_probs, dy, table), options, out)


_DECODE = documented("""
Args:
    log_probs: (T, N, C), as of `ctc_loss`.
    input_lengths: (N,) integers from 0 to T: the steps of each sequence; None for T.
    blank: the class that is no label.
Raises:
    TypeError: log-probabilities that are no floats, lengths that are no integers.
    ValueError: arrays of other shapes, lengths out of range, a blank that is no class.
""")


def _lengths(log_probs: Any, input_lengths: Any, blank: Any) -> Any:
    steps, batch, _ = sizes(log_probs, blank)
    given = np.full(batch, steps) if input_lengths is None else input_lengths
    return beside(log_probs, lengths_of(given, "input_lengths", batch, steps, "steps"))


@_DECODE
def ctc_greedy_decode(log_probs: Any, input_lengths: Any = None, *, blank: int = 0) -> Any:
    """Labels of the most probable path: the largest class of each step (the first of equal ones), repetitions merged
    and blanks taken away.

    Returns:
        labels (N, T) int64, blank behind the last; how many there are (N,) int64; the path's log-probability (N,), of
        log_probs's dtype.

    Example:
        >>> import numpy as np, numbaprims
        >>> scores = np.log([[[0.1, 0.9]], [[0.2, 0.8]], [[0.7, 0.3]], [[0.4, 0.6]]])
        >>> labels, lengths, score = numbaprims.ctc_greedy_decode(scores)
        >>> labels[0, : lengths[0]].tolist(), float(score[0].round(4))
        ([1, 1], -1.196)
    """
    return greedy_of(log_probs, _lengths(log_probs, input_lengths, blank), blank)


def greedy_of(log_probs: Any, table: Any, blank: int) -> Any:
    """`ctc_greedy_decode` by a table of lengths, at which nobody looks."""
    return run((log_probs, table), Options("greedy", blank))


@_DECODE
def ctc_beam_search_decode(
    log_probs: Any, input_lengths: Any = None, *, beam_width: int = 16, paths: int = 1, blank: int = 0
) -> Any:  # fmt: skip
    """Most probable labels, by a search over prefixes: at each step the `beam_width` prefixes are kept whose paths have
    the largest sum of probabilities.

    Args:
        beam_width: prefixes that are kept, 1 to 1024.
        paths: how many of the best are given, 1 to `beam_width`.

    Returns:
        labels (N, paths, T) int64, blank behind the last; how many there are (N, paths) int64; the logarithms of the
        sums of all their paths that were looked at (N, paths), of log_probs's dtype, the best first: -inf, and no
        labels, where there are fewer.

    Example:
        >>> import numpy as np, numbaprims
        >>> log_probs = np.log([[[0.6, 0.4]], [[0.6, 0.4]]])
        >>> labels, lengths, scores = numbaprims.ctc_beam_search_decode(log_probs)
        >>> labels[0, 0, : lengths[0, 0]].tolist(), float(np.exp(scores[0, 0]).round(4))  # blank, blank has 0.36 alone
        ([1], 0.64)

    References:
        Hannun, Maas, Jurafsky and Ng, First-pass large vocabulary continuous speech recognition using bi-directional
        recurrent DNNs, 2014, algorithm 1.
    """
    _check_widths(beam_width, paths)
    return beams_of(log_probs, _lengths(log_probs, input_lengths, blank), beam_width, paths, blank)


def beams_of(log_probs: Any, table: Any, beam_width: int, paths: int, blank: int) -> Any:
    """`ctc_beam_search_decode` by a table of lengths, at which nobody looks."""
    _check_widths(beam_width, paths)
    return run((log_probs, table), Options("beam", blank, width=beam_width, paths=paths))


def _check_widths(beam_width: Any, paths: Any) -> None:
    for value, name, most in ((beam_width, "beam_width", 1024), (paths, "paths", beam_width)):
        if not 1 <= integer(value, name) <= most:
            raise ValueError(f"{name} is {value}; it must be 1 to {most}")


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    p = problem
    shape = (p.steps, p.batch, p.classes) if p.order == "rows" else (p.steps, p.batch, 2 * p.classes)
    x = examples.array(shape, p.dtype, low=-6.0, high=0.0)
    x = x if p.order == "rows" else x[..., ::2]
    if p.way == "greedy":
        return "ctc_greedy_decode", (x,), {}
    if p.way == "beam":
        return "ctc_beam_search_decode", (x,), {"beam_width": p.width, "paths": p.paths}
    # one target fills the table, whether or not there is a path; classes but the blank, one after another
    count = p.labels if p.classes > 1 else 0
    targets = np.tile(np.arange(count) % max(1, p.classes - 1) + 1, (p.batch, 1))
    lengths, counts = np.full(p.batch, p.steps), np.full(p.batch, count)
    given = (x, targets, lengths, counts)
    if p.way == "loss":
        return "ctc_loss", given, {}
    dy = examples.array((p.batch,), p.dtype)
    return "ctc_loss_backward", (dy, *given), {"logits": p.logits}


PROBLEMS = problems(ctc_loss, ctc_loss_backward, ctc_greedy_decode, ctc_beam_search_decode)
EXAMPLES = {"ctc": _example_call}
