"""Gradients of normalisations of rows: in one walk, or by two launches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbaprims import settings
from numbaprims.arrays import enter
from numbaprims.ops._ending import ending_of
from numbaprims.ops._norm_problem import STEPS


def backward(formula: str, arrays: tuple[Any, ...], weight: Any, bias: Any, dims: int, activation: Any, dsum: Any,
              out: Any) -> tuple[Any, Any]:  # fmt: skip
    """(dx, gradients of the parameters).

    A row's sums give dx, a column's those of parameters. One walk over rows that lie one behind the other gives dx and
    sums of the columns of blocks of rows, which are then added up; elsewhere they are two launches.
    """
    ending = ending_of(activation)
    parameters = (weight, bias if ending else None)[: 2 if formula == "layer_norm" else 1]
    if weight is not None and in_rows(arrays[0], arrays[1], *parameters, dsum, out):
        shape, of = tuple(arrays[1].shape), weight.shape
        flat = len(shape) == 2 and dims == 1
        if math.prod(of) > 1 and (flat or _fit(shape, dims, arrays, parameters, (dsum, out))):
            n = math.prod(of)
            given = (*arrays, *parameters, dsum)
            if not flat:
                sizes = (n, n, *(1,) * (len(arrays) - 2), *(0,) * len(parameters), n)
                given = tuple(
                    x if x is None else x.reshape((-1, size) if size else (n,))
                    for x, size in zip(given, sizes, strict=True)
                )
            target = out if flat or out is None else out.reshape((-1, n))
            dx, *blocks = STEPS[f"{formula}_gradient"](given, 1, ending=ending, out=target)
            found = STEPS["sample_sums"]((*blocks, None)[:2] + (given[len(arrays)],))
            if flat:
                return dx, found
            whole = dx.reshape(shape) if out is None else out
            return whole, tuple(x.reshape(of) for x in found) if len(blocks) > 1 else found.reshape(of)

    def sums() -> Any:
        return None if weight is None else STEPS[f"{formula}_sums"]((*arrays, *parameters), dims, ending=ending)

    # dx may be written over what the sums read
    first = None if out is None else sums()
    dx = STEPS[f"{formula}_backward"]((*arrays, *parameters, dsum), dims, ending=ending, out=out)
    return dx, sums() if out is None else first


def in_rows(*arrays: Any) -> bool:
    """Whether they lie one row behind the other in memory of the host."""
    if settings.current().device not in (None, "cpu"):
        return False
    for x in arrays:
        storage = x if x is None or type(x) is np.ndarray else enter(x, "x")[0]
        if x is not None and not (type(storage) is np.ndarray and storage.flags.c_contiguous and storage.size):
            return False
    return True


def _fit(shape: tuple[int, ...], dims: int, arrays: Any, parameters: Any, others: Any) -> bool:
    """Whether arrays that will be looked at as rows go together; what does not is refused by the other way."""
    if type(dims) is not int or not 1 <= dims < len(shape):
        return False
    one = (*shape[:-dims], *(1,) * dims)
    wanted = ((arrays[:1], shape), (others, shape), (arrays[2:], one), (parameters, shape[-dims:]))
    return all(x is None or tuple(x.shape) == each for xs, each in wanted for x in xs)
