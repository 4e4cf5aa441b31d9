"""Attention: `attention`, with what its gradient reads `attention_train`, and `attention_backward`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims.dtypes import DTYPES
from numbaprims.ops import examples
from numbaprims.ops._attention_problem import AttentionProblem as AttentionProblem, default_scale
from numbaprims.ops._docs import documented
from numbaprims.ops._numbers import finite
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, problems, truth
from numbaprims.reference import attention as reference
from numbaprims.shapes import element_strides


def _sizes(given: Given, at: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(batch shape, heads, rows, width), (groups, keys, values) of q, k and v, which begin at `at`."""
    q, k, v = (given.storages[at + each] for each in range(3))
    for each in range(3):
        if given.storages[at + each].ndim < 3:
            raise ValueError(f"{given.words(at + each)}; it must be (..., heads, length, width)")
    *batch, heads, rows, width = q.shape
    *_, groups, keys, values = v.shape
    if k.shape != (*batch, groups, keys, width):
        raise ValueError(
            f"{given.words(at + 1)}; beside q {q.shape} and v {v.shape} it must be {(*batch, groups, keys, width)}"
        )
    if list(v.shape[:-3]) != batch:
        raise ValueError(f"{given.words(at + 2)}; beside q {q.shape} its batch must be {tuple(batch)}")
    if heads != groups and (not groups or heads % groups):
        raise ValueError(f"{given.words(at)} and {given.words(at + 1)}; heads of q must be a multiple of those of k")
    return (*batch, heads, rows, width), (groups, keys, values)


def _mask(given: Given, shape: tuple[int, ...], dtype: str) -> tuple[str, tuple[int, ...]]:
    """(kind, strides) of the mask, the last array."""
    mask = given.storages[-1]
    if mask is None:
        return "", ()
    kind, at = given.dtypes[-1], len(given.storages) - 1
    if kind not in ("bool", dtype):
        raise TypeError(f"{given.words(at)}; it must be bool, or of q's type")
    if mask.ndim > len(shape) or any(
        n not in (1, full) for n, full in zip(mask.shape[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(f"{given.words(at)}; it must broadcast to {shape}")
    steps = element_strides(mask)
    lead = (0,) * (len(shape) - mask.ndim)
    steps = tuple(0 if n == 1 else step for n, step in zip(mask.shape, steps, strict=True))
    return "bool" if kind == "bool" else "float", (*lead, *steps)


class _Sized:
    """A call's sizes, as its problem has them."""

    def __init__(self, given: Given, first: int, options: tuple[Any, ...]) -> None:
        (*self.batch, self.heads, self.rows, self.width), (self.groups, self.keys, self.values) = _sizes(given, first)
        dtype = given.dtypes[first]
        assert dtype is not None
        self.dtype, self.causal = dtype, options[0]
        self.mask, self.mask_strides = _mask(given, (*self.batch, self.heads, self.rows, self.keys), dtype)

    def problem(self, way: str, *strides: tuple[int, ...]) -> AttentionProblem:
        batch = int(np.prod(self.batch, dtype=np.int64))
        return AttentionProblem(
            self.dtype, way, batch, self.heads, self.groups, self.rows, self.keys, self.width, self.values,
            self.causal, self.mask, tuple(self.batch), (*strides, self.mask_strides),
        )  # fmt: skip


def _slots(results: int, first: int, given: Given) -> tuple[int, ...]:
    return (*range(results), *(first + at for at, array in enumerate(given.storages) if array is not None))


def _pose(given: Given, options: tuple[Any, ...]) -> Pose:
    sizes, train = _Sized(given, 0, options), options[1]
    results = [Result((*sizes.batch, sizes.heads, sizes.rows, sizes.values), sizes.dtype)]
    if train:
        results.append(Result((*sizes.batch, sizes.heads, sizes.rows), DTYPES[sizes.dtype].accumulate))

    def problem(made: Sequence[Any]) -> AttentionProblem:
        lse = (*element_strides(made[1]), 0) if train else ()
        arrays = map(element_strides, given.storages[:3])
        return sizes.problem("train" if train else "inference", element_strides(made[0]), lse, *arrays)

    return Pose(tuple(results), problem, _slots(len(results), 2, given))


def _pose_backward(given: Given, options: tuple[Any, ...]) -> Pose:
    sizes = _Sized(given, 1, options)
    dout, q, k, v, out, lse, _ = given.storages
    wanted = (*sizes.batch, sizes.heads, sizes.rows, sizes.values)
    for at, shape in ((0, wanted), (4, wanted), (5, wanted[:-1])):
        if given.storages[at].shape != shape:
            raise ValueError(f"{given.words(at)}; it must have shape {shape}")
    if given.dtypes[5] != DTYPES[sizes.dtype].accumulate:
        raise TypeError(f"{given.words(5)}; it must be what attention_train gave")

    def problem(made: Sequence[Any]) -> AttentionProblem:
        arrays = map(element_strides, (*made, dout, q, k, v, out))
        return sizes.problem("backward", *arrays, (*element_strides(lse), 0))

    results = tuple(Result(x.shape, sizes.dtype) for x in (q, k, v))
    return Pose(results, problem, _slots(3, 3, given))


def _define(values: Any, options: Any, numbers: Any) -> Any:
    causal, train, truth = options
    q, k, v, mask = values
    found = reference.forward(q, k, v, mask.astype(bool) if truth else mask, causal, numbers[0])
    return found if train else found[0]


def _define_backward(values: Any, options: Any, numbers: Any) -> Any:
    causal, _, truth = options
    dout, q, k, v, out, lse, mask = values
    mask = mask.astype(bool) if truth else mask
    return reference.backward(dout, q, k, v, out, lse, mask, causal, numbers[0])


_attention, _train = (
    Primitive(name, ("q", "k", "v", "mask"), _pose, _define, others=("mask",), required=3)
    for name in ("attention", "attention_train")
)
_backward = Primitive(
    "attention_backward", ("dout", "q", "k", "v", "y", "lse", "mask"), _pose_backward, _define_backward,
    others=("lse", "mask"), required=6,
)  # fmt: skip


def _numbers(q: Any, scale: float | None) -> tuple[float]:
    if scale is not None:
        return (finite(scale, "scale"),)
    shape: Any = getattr(q, "shape", ())
    return (default_scale(shape[-1]) if len(shape) else 1.0,)


def _options(mask: Any, causal: bool, train: bool) -> tuple[Any, ...]:
    """(causal, whether what the gradient reads is kept, whether the mask says true and false)."""
    return truth(causal, "causal"), train, mask is not None and str(getattr(mask, "dtype", "")).endswith("bool")


_COMMON = """
Args:
    q: queries (..., heads, length, width), of any strides; float64, float32, float16 or bfloat16, whose products and
        sums are kept in float32 for the last two.
    k: keys (..., groups, keys, width); heads is a multiple of groups, and query head h reads head
        h // (heads / groups) of k and v (grouped queries).
    v: values (..., groups, keys, values).
    mask: broadcasts to (..., heads, length, keys): bool, where True takes part, or of q's type and added to the scores.
    causal: whether row i sees keys 0 to i alone, as torch's `is_causal`.
    scale: factor of the scores; None for 1 / sqrt(width).
    out: where the result goes; it shares no memory with the operands.
Raises:
    TypeError: integers, mixed dtypes or libraries, a mask of another type.
    ValueError: shapes that do not go together, a scale that is not finite, an `out` of another shape, or one that
        overlaps.
References:
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Rabe and Staats, Self-attention does not
    need O(n^2) memory, 2021; Dao, FlashAttention-2, 2023.
"""


@documented(_COMMON)
def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None, out: Any = None
) -> Any:
    """Attend to values by the likeness of queries and keys: ``out = softmax(scale q k^T + mask) v``.

    The scores are never in memory as a whole. A row to which nothing is open (its mask all False or -inf) is 0, as in
    torch.

    Returns:
        out (..., heads, length, values), of q's dtype and library.

    Example:
        >>> import numpy as np, numbaprims
        >>> q, k, v = np.zeros((1, 2, 4)), np.ones((1, 2, 4)), np.float64([[[1.0], [3.0]]])
        >>> numbaprims.attention(q, k, v).tolist(), numbaprims.attention(q, k, v, causal=True).tolist()
        ([[[2.0], [2.0]]], [[[1.0], [2.0]]])
    """
    return _attention.run((q, k, v, mask), _options(mask, causal, False), _numbers(q, scale), out)


@documented(_COMMON)
def attention_train(
    q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None, out: Any = None
) -> Any:
    """Attend as `attention`, and keep of each row ``lse = log(sum exp(scale q k^T + mask))``.

    Returns:
        out, and lse (..., heads, length) in the type of the sums; -inf of a row to which nothing is open.

    Example:
        >>> import numpy as np, numbaprims
        >>> out, lse = numbaprims.attention_train(np.zeros((1, 1, 4)), np.ones((1, 2, 4)), np.ones((1, 2, 3)))
        >>> lse.round(4).tolist()
        [[0.6931]]
    """
    return _train.run((q, k, v, mask), _options(mask, causal, True), _numbers(q, scale), out)


_GRADIENT = """
Args:
    dout: the gradient of out.
    y: what `attention_train` gave as out; a gradient has no `out` of its own to write to.
    lse: likewise.
"""


@documented(_COMMON, _GRADIENT)
def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, y: Any, lse: Any, *, mask: Any = None, causal: bool = False,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """Give the gradients of `attention` by its operands, from probabilities that are computed again.

    ``P = exp(scale q k^T + mask - lse)``, ``dv = P^T dout``, ``dS = P (dout v^T - sum(dout y))``,
    ``dq = scale dS k``, ``dk = scale dS^T q``; dk and dv are summed over the query heads of a group.

    Returns:
        dq, dk, dv.

    Example:
        >>> import numpy as np, numbaprims
        >>> q, k, v = np.zeros((1, 1, 4)), np.ones((1, 2, 4)), np.float64([[[1.0], [3.0]]])
        >>> out, lse = numbaprims.attention_train(q, k, v)
        >>> numbaprims.attention_backward(np.ones_like(out), q, k, v, out, lse)[2].tolist()
        [[[0.5], [0.5]]]
    """
    return _backward.run((dout, q, k, v, y, lse, mask), _options(mask, causal, False), _numbers(q, scale))


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    p = problem

    def array(heads: int, rows: int, columns: int) -> Any:
        return examples.array((p.batch, heads, rows, columns), p.dtype)

    given = array(p.heads, p.rows, p.width), array(p.groups, p.keys, p.width), array(p.groups, p.keys, p.values)
    words: dict[str, Any] = {"causal": p.causal}
    if p.mask == "float":
        words["mask"] = examples.array((p.rows, p.keys), p.dtype)
    elif p.mask == "bool":
        words["mask"] = np.add.outer(np.arange(p.rows), np.arange(p.keys)) % 3 > 0
    if p.way != "backward":
        return "attention_train" if p.way == "train" else "attention", given, words
    out, lse = attention_train(*given, **words)
    return "attention_backward", (array(p.heads, p.rows, p.values), *given, out, lse), words


PROBLEMS = problems(attention, attention_train, attention_backward)
EXAMPLES = {"attention": _example_call}
