"""Elements of an array at other places: by indices, and by the boxes of a pad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, settings
from numbaprims.dispatch import registry
from numbaprims.dispatch.call import device_of
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.ops import examples
from numbaprims.ops._gather_index_problem import STATUS, IndexProblem
from numbaprims.ops._gather_pad import (
    axis_of,
    bits_of,
    pad as pad,
    pad_backward as pad_backward,
    split as split,
)
from numbaprims.ops._gather_problem import merged
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, integer, problems, truth
from numbaprims.reference import gather as reference
from numbaprims.shapes import element_strides

INDICES = ("i32", "i64")


def _index_type(given: Given) -> str:
    dtype = str(given.dtypes[1])
    if dtype not in INDICES:
        raise TypeError(f"{given.words(1)}; indices are int32 or int64")
    return dtype


def _whole(x: Any, name: str) -> Any:
    """An array in C order; a copy where it does not lie so."""
    if type(x) is np.ndarray:
        if x.flags.c_contiguous:
            return x
    else:
        storage = arrays.enter(x, name)[0]
        if storage.flags.c_contiguous:
            return x
    storage, dtype, library = arrays.enter(x, name)
    return _copied(x, dtype, library.empty(storage.shape, dtype)[0])


def _copied(x: Any, dtype: str, out: Any) -> Any:
    """x in another order; no call that `explain` and `find` are asked for."""
    from numbaprims.ops.tensor import cast

    with settings.trial(None):
        return cast(x, LONG_NAMES[dtype], out=out)


def _for_device(x: Any, name: str) -> Any:
    """An array in C order where a GPU takes it."""
    wanted = settings.current().device
    if type(x) is np.ndarray and wanted in (None, "cpu", "reference"):
        return x
    return _whole(x, name) if device_of(arrays.enter(x, name)[2]) != "cpu" else x


def _pose_gather(given: Given, options: tuple[Any, ...]) -> Pose:
    (axis,) = options
    (x, indices), dtype = given.storages, str(given.dtypes[0])
    index, size = _index_type(given), x.shape[axis]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if indices.size and not size:
        raise ValueError(f"{given.words(0)}, which has no elements along axis {axis}, and {given.words(1)}")

    def problem(outs: Sequence[Any]) -> Problem:
        steps, of = element_strides(outs[0]), element_strides(x)
        rank = indices.ndim

        def axes(lengths: Any, to: Any, taken: Any) -> Any:
            return merged(lengths, ((0, 0),) * len(lengths), "constant", to, taken) if math.prod(lengths) > 1 else ()

        before = axes(x.shape[:axis], steps[:axis], of[:axis])
        behind = axes(x.shape[axis + 1 :], steps[axis + rank :], of[axis + 1 :])
        layout = "rows" if not behind or behind[-1].padded_step == behind[-1].step == 1 else "strided"
        # of no dimension one index; the result is in C order
        along = (inner, of[axis])
        return IndexProblem(
            "gather",
            dtype,
            index,
            ((outer, size, indices.size, inner),),
            layout,
            before=before,
            behind=behind,
            steps=along,
        )

    return Pose((Result(shape, dtype), Result((STATUS,), "i64")), problem)


def _pose_scatter(given: Given, options: tuple[Any, ...]) -> Pose:
    size, axis, skip, mean = options
    (dy, indices), dtype = given.storages, str(given.dtypes[0])
    index, rank = _index_type(given), indices.ndim
    if dy.shape[axis : axis + rank] != indices.shape:
        raise ValueError(f"{given.words(0)} and {given.words(1)}; from axis {axis} on dy must have the indices' shape")
    shape = (*dy.shape[:axis], size, *dy.shape[axis + rank :])
    outer, inner = math.prod(dy.shape[:axis]), math.prod(dy.shape[axis + rank :])
    made = IndexProblem("scatter", dtype, index, ((outer, size, indices.size, inner),), "rows", skip, mean)
    return Pose((Result(shape, dtype), Result((STATUS,), "i64")), lambda outs: made)


def _define_gather(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    x, indices = values
    return reference.gather(x, indices.astype(np.int64), *options)


def _define_scatter(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    dy, indices = values
    return reference.scatter(dy, indices.astype(np.int64), *options)


_gather, _embed = (
    Primitive(
        name, (x, "indices"), _pose_gather, _define_gather, dtypes=tuple(DTYPES), others=("indices",), required=2
    )
    for name, x in (("gather", "x"), ("embedding", "weight"))
)  # fmt: skip
_scatter, _embed_back = (
    Primitive(name, ("dy", "indices"), _pose_scatter, _define_scatter, others=("indices",), required=2)
    for name in ("gather_backward", "embedding_backward")
)


def _checked(primitive: Primitive, given: tuple[Any, ...], options: tuple[Any, ...], size: int, out: Any) -> Any:
    """A call whose second result says whether all indices are in range."""
    if settings.current().device not in (None, "cpu", "reference"):
        _check_on_host(given[1], size)
    scattered = (
        out is not None and not (out if type(out) is np.ndarray else arrays.enter(out, "out")[0]).flags.c_contiguous
    )
    result, status = primitive.run(given, options, (), None if scattered else out)
    if getattr(settings.current().trial, "later", False):
        return result, status
    place = int(status[0]) if type(status) is np.ndarray else _element(status, 0)
    if place >= 0:
        raise _out_of_range(given[1], place, size)
    if not scattered:
        return result
    storage, dtype, library = arrays.enter(result, "y")
    target = arrays.check_out(out, storage.shape, dtype, library=library)
    named = [(arrays.enter(x, name)[0], name, False) for x, name in zip(given, primitive.inputs, strict=True)]
    arrays.check_overlap(target, named)
    return _copied(result, dtype, out)


def _check_on_host(indices: Any, size: int) -> None:
    """What a GPU is to do with arrays of the host: its result, of which nothing is known before, is copied over all."""
    storage = arrays.enter(indices, "indices")[0]
    if type(storage) is np.ndarray and storage.dtype.kind == "i" and size:
        bad = (storage < -size) | (storage >= size)
        if bad.any():
            raise _out_of_range(indices, int(bad.argmax()), size)


def _out_of_range(indices: Any, place: int, size: int) -> IndexError:
    where = list(map(int, np.unravel_index(place, arrays.enter(indices, "indices")[0].shape)))
    bad = _element(indices, place)
    return IndexError(f"indices{where} is {bad}; of {size} elements the indices are {-size} to {size - 1}")


def _element(x: Any, at: int) -> int:
    """Of an array of any library, counted in C order: on a GPU the host waits for it, on the stream of the call."""
    storage = arrays.enter(x, "x")[0]
    return int((storage if isinstance(storage, np.ndarray) else registry.memory().read(storage)).item(at))


def gather(x: Any, indices: Any, axis: int = 0, *, out: Any = None) -> Any:
    """Take elements of an array by their indices along an axis: ``y[o, j, i] = x[o, indices[j], i]``.

    Args:
        x: any shape with an axis, any strides and type.
        indices: int32 or int64, of any shape; those below 0 count from the end.
        axis: along which.
        out: where y goes; it shares no memory with x.

    Returns:
        y, in C order, of x's dtype and library and of the shape
        ``x.shape[:axis] + indices.shape + x.shape[axis + 1:]``.

    Raises:
        TypeError: indices of another type, an axis that is no integer.
        IndexError: an index out of range; the first one and its place are named, and nothing is written. On a GPU the
            host waits for the check.
        ValueError: an axis that x does not have, an `out` of another shape or one that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.gather(np.float32([[1, 2], [3, 4]]), np.array([1, -1, 0]))
        array([[3., 4.],
               [3., 4.],
               [1., 2.]], dtype=float32)

    References:
        ONNX Gather; numpy.take; torch.index_select.
    """
    storage = x if type(x) is np.ndarray else arrays.enter(x, "x")[0]
    at = axis_of(axis, storage.ndim, x=x)
    return _checked(_gather, (_for_device(x, "x"), _whole(indices, "indices")), (at,), storage.shape[at], out)


def gather_known(x: Any, indices: Any, axis: int, out: Any = None) -> Any:
    """`gather` by indices that are known to be in range, which nobody waits for."""
    return _gather.run((x, indices), (axis,), (), out)[0]


def gather_backward(dy: Any, indices: Any, size: int, axis: int = 0, *, out: Any = None) -> Any:
    """Gradient of `gather`: ``dx[o, k, i] = sum of dy[o, j, i] over the j with indices[j] = k``.

    Sums go in the order of j, in float32 for 16 bits: the same bits with any number of threads.

    Args:
        dy: the gradient of y; float64, float32, float16 or bfloat16, any strides.
        indices: those of `gather`.
        size: elements of x along the axis.
        axis: that of `gather`, counted in x.
        out: where dx goes; it shares no memory with dy.

    Returns:
        dx, in C order, of dy's dtype and library.

    Raises:
        TypeError, IndexError: as of `gather`; integers in dy.
        ValueError: as of `gather`; a dy whose shape does not fit.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.gather_backward(np.float32([1, 2, 4]), np.array([1, -1, 0]), 2)
        array([4., 3.], dtype=float32)

    References:
        The chain rule; torch.index_add.
    """
    rank = arrays.enter(dy, "dy")[0].ndim - arrays.enter(indices, "indices")[0].ndim + 1
    at = axis_of(axis, max(1, rank), dy=dy, indices=indices)
    return _back(_scatter, dy, indices, size, (at, -1, False), out)


def _back(primitive: Primitive, dy: Any, indices: Any, size: Any, options: tuple[Any, ...], out: Any) -> Any:
    length = integer(size, "size")
    if length < 0:
        raise ValueError(f"size is {size}; it must be 0 at least")
    given = (_whole(dy, "dy"), _whole(indices, "indices"))
    return _checked(primitive, given, (length, *options), length, out)


def embedding(weight: Any, indices: Any, padding_idx: int | None = None, *, out: Any = None) -> Any:
    """Rows of a table: ``y[..., :] = weight[indices[...], :]``.

    Args:
        weight: (rows, width), any strides and type.
        indices: int32 or int64, of any shape; those below 0 count from the end.
        padding_idx: the row that has no gradient (`embedding_backward`); it does nothing here.
        out: where y goes; it shares no memory with weight.

    Returns:
        y, of the shape ``indices.shape + (width,)``, of weight's dtype and library.

    Raises:
        TypeError, IndexError: as of `gather`.
        ValueError: a weight without two dimensions, a padding_idx out of range; as of `gather`.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.embedding(np.float32([[1, 2], [3, 4]]), np.array([[1], [0]]))
        array([[[3., 4.]],
        <BLANKLINE>
               [[1., 2.]]], dtype=float32)

    References:
        torch.nn.functional.embedding.
    """
    storage = weight if type(weight) is np.ndarray else arrays.enter(weight, "weight")[0]
    if storage.ndim != 2:
        raise ValueError(f"weight is a {arrays.describe(weight)}; it must have two dimensions")
    _skipped(padding_idx, storage.shape[0])
    return _checked(_embed, (_for_device(weight, "weight"), _whole(indices, "indices")), (0,), storage.shape[0], out)


def _skipped(padding_idx: Any, rows: int) -> int:
    if padding_idx is None:
        return -1
    at = integer(padding_idx, "padding_idx")
    if not -rows <= at < rows:
        raise ValueError(f"padding_idx is {padding_idx}; of {rows} rows it is {-rows} to {rows - 1}")
    return at % rows


def embedding_backward(
    dy: Any, indices: Any, num_embeddings: int, padding_idx: int | None = None, *, scale_grad_by_freq: bool = False,
    out: Any = None,
) -> Any:  # fmt: skip
    """Gradient of `embedding`: ``dweight[k] = sum of dy[j] over the j with indices[j] = k``.

    Indices are sorted by counting them, and each row's sum goes in the order of j, in float32 for 16 bits: the same
    bits with any number of threads.

    Args:
        dy: the gradient of y, ``indices.shape + (width,)``; float64, float32, float16 or bfloat16, any strides.
        indices: those of `embedding`.
        num_embeddings: rows of weight.
        padding_idx: a row whose gradient is 0.
        scale_grad_by_freq: whether each row's sum is divided by the number of its terms.
        out: where dweight goes; it shares no memory with dy.

    Returns:
        dweight, (num_embeddings, width), of dy's dtype and library.

    Raises:
        TypeError, IndexError: as of `gather`; integers in dy.
        ValueError: a dy whose shape does not fit, a padding_idx out of range.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.embedding_backward(np.float32([[1], [2], [4]]), np.array([1, 1, 0]), 2)
        array([[4.],
               [3.]], dtype=float32)

    References:
        torch.nn.functional.embedding.
    """
    skip = _skipped(padding_idx, integer(num_embeddings, "num_embeddings"))
    storage, taken = arrays.enter(dy, "dy")[0], arrays.enter(indices, "indices")[0]
    if storage.ndim != taken.ndim + 1:
        raise ValueError(
            f"dy is a {arrays.describe(dy)} and indices a {arrays.describe(indices)}; dy has one axis more"
        )
    return _back(
        _embed_back, dy, indices, num_embeddings, (0, skip, truth(scale_grad_by_freq, "scale_grad_by_freq")), out
    )


# ---------------------------------------------------------------- one_hot


def _pose_one_hot(given: Given, options: tuple[Any, ...]) -> Pose:
    depth, axis, on, off, dtype = options
    indices, index = given.storages[0], str(given.dtypes[0])
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    outer, inner = math.prod(indices.shape[:axis]), math.prod(indices.shape[axis:])
    bits = bits_of(off, dtype, "off_value"), bits_of(on, dtype, "on_value")
    made = IndexProblem("one_hot", dtype, index, ((outer, depth, 1, inner),), "rows", bits=bits)
    return Pose((Result(shape, dtype),), lambda outs: made)


def _define_one_hot(values: Any, options: tuple[Any, ...], numbers: Any) -> Any:
    return reference.one_hot(values[0].astype(np.int64), *options[:4])


_one_hot = Primitive("one_hot", ("indices",), _pose_one_hot, _define_one_hot, dtypes=INDICES)


def one_hot(
    indices: Any, depth: int, *, axis: int = -1, on_value: float = 1, off_value: float = 0, dtype: Any = "float32",
    out: Any = None,
) -> Any:  # fmt: skip
    """Rows that are on at one place: ``y[..., d] = on_value where d is the index, else off_value``.

    Indices below 0 count from the end; those that are out of range are no error, as in ONNX: all of their row is off.

    Args:
        indices: int32 or int64, any shape and strides.
        depth: elements of a row.
        axis: of y along which the rows lie, the last by default.
        on_value: of the one.
        off_value: of the others.
        dtype: of y, any.
        out: where y goes; it shares no memory with indices.

    Returns:
        y, with one axis more than indices, of their library.

    Raises:
        TypeError: indices of another type, a depth that is no integer.
        ValueError: a depth below 0, an axis that y does not have, values that dtype does not hold, an `out` of another
            shape or one that overlaps.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.one_hot(np.array([1, -1, 7]), 3)
        array([[0., 1., 0.],
               [0., 0., 1.],
               [0., 0., 0.]], dtype=float32)

    References:
        ONNX OneHot; torch.nn.functional.one_hot, which refuses what is out of range.
    """
    storage, length = arrays.enter(indices, "indices")[0], integer(depth, "depth")
    if length < 0:
        raise ValueError(f"depth is {depth}; it must be 0 at least")
    at = axis_of(axis, storage.ndim + 1, indices=indices)
    name = arrays.dtype_name(dtype, "dtype")
    given = (_whole(indices, "indices"),)
    options = (length, at, on_value, off_value, name)
    if out is None or arrays.enter(out, "out")[0].flags.c_contiguous:
        return _one_hot.run(given, options, (), out)
    shape = (*storage.shape[:at], length, *storage.shape[at:])
    target = arrays.check_out(out, shape, name, library=arrays.enter(indices, "indices")[2])
    arrays.check_overlap(target, [(storage, "indices", False)])
    return _copied(_one_hot.run(given, options), name, out)


# ---------------------------------------------------------------- find and tune


def _example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    p = problem

    def lies(shape: tuple[int, ...]) -> Any:
        if p.layout == "rows":
            return examples.array(shape, p.dtype)
        return examples.array((*shape[:-1], 2 * shape[-1]), p.dtype)[..., ::2]

    if p.kind in ("pad", "fold"):
        pads = [(before - first, after - (size - first - kept)) for size, first, kept, before, after, _ in p.sizes]
        shape = [size for size, *_ in p.sizes]
        if p.sizes[-1][-1] > 1:
            pads, shape = [*pads, (0, 0)], [*shape, p.sizes[-1][-1]]
        if p.kind == "pad":
            return "pad", (lies(tuple(shape)), pads, p.mode), {}
        padded = tuple(size + low + high for size, (low, high) in zip(shape, pads, strict=True))
        return "pad_backward", (lies(padded), tuple(shape), pads, p.mode), {}
    if p.kind == "split":
        (outer, inner), parts = p.sizes
        return "split", (lies((outer, sum(parts), *(inner,) * (inner > 1))), tuple(parts), 1), {}
    ((outer, size, count, inner),) = p.sizes
    many = outer * inner if p.kind == "one_hot" else count
    indices = np.resize(np.arange(max(1, size)) * 7919 % max(1, size), many).astype(LONG_NAMES[p.mode])
    if p.kind == "gather":
        return "gather", (lies((outer, size, *(inner,) * (inner > 1))), indices, 1), {}
    if p.kind == "scatter":
        return "gather_backward", (lies((outer, count, inner)), indices, size, 1), {}
    return "one_hot", (indices.reshape(outer, inner), size), {"axis": 1, "dtype": LONG_NAMES[p.dtype]}


PROBLEMS = problems(pad, pad_backward, split, gather, gather_backward, embedding, embedding_backward, one_hot)
EXAMPLES = {"gather": _example_call}
