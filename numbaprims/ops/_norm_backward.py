"""Gradients of normalisations of rows: in one walk, or by two launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from numbaprims import settings
from numbaprims.arrays import enter
from numbaprims.ops._ending import ending_of
from numbaprims.ops._norm_problem import STEPS
from numbaprims.ops.primitive import Joined


def backward(formula: str, arrays: tuple[Any, ...], weight: Any, bias: Any, dims: int, activation: Any, dsum: Any,
              out: Any) -> tuple[Any, Any]:  # fmt: skip
    """(dx, gradients of the parameters): of layer norm two, of rms norm one, None without a weight."""
    ending = ending_of(activation)
    given = (*arrays, weight, bias if ending else None)[: 6 if formula == "layer_norm" else 4]
    found = _BACKWARD[formula]((*given, dsum), (dims, ending), (), out)
    if weight is None:
        return found, None
    return found[0], found[1:] if formula == "layer_norm" else found[1]


def _apart(formula: str, given: Sequence[Any], options: tuple[Any, ...], out: Any) -> Any:
    """A row's sums give dx, a column's those of parameters. One walk over rows that lie one behind the other gives dx
    and sums of the columns of blocks of rows, which are then added up; elsewhere they are two launches.
    """
    (dims, ending), count = options, 4 if formula == "layer_norm" else 3
    arrays, parameters, dsum = given[:count], given[count:-1], given[-1]
    weight = parameters[0]
    if weight is not None and arrays[1] is not None and in_rows(*arrays[:2], *parameters, dsum, out):
        shape, of = tuple(arrays[1].shape), weight.shape
        flat = len(shape) == 2 and dims == 1
        if math.prod(of) > 1 and (flat or _fit(shape, dims, arrays, parameters, (dsum, out))):
            n = math.prod(of)
            if not flat:
                sizes = (n, n, *(1,) * (count - 2), *(0,) * len(parameters), n)
                given = tuple(
                    x if x is None else x.reshape((-1, size) if size else (n,))
                    for x, size in zip(given, sizes, strict=True)
                )
            target = out if flat or out is None else out.reshape((-1, n))
            dx, *blocks = STEPS[f"{formula}_gradient"](tuple(given), 1, ending=ending, out=target)
            found = STEPS["sample_sums"]((*blocks, None)[:2] + (given[count],))
            found = found if len(blocks) > 1 else (found,)
            if flat:
                return dx, *found
            return dx.reshape(shape) if out is None else out, *(x.reshape(of) for x in found)

    def sums() -> tuple[Any, ...]:
        if weight is None:
            return ()
        made = STEPS[f"{formula}_sums"]((*arrays, *parameters), dims, ending=ending)
        return made if type(made) is tuple else (made,)

    # dx may be written over what the sums read
    first = None if out is None else sums()
    dx = STEPS[f"{formula}_backward"]((*arrays, *parameters, dsum), dims, ending=ending, out=out)
    found = (dx, *(sums() if first is None else first))
    return found if weight is not None else dx


_LAYER = "dy", "x", "saved_mean", "saved_inv_std", "weight", "bias", "dsum"
_BACKWARD = {
    "layer_norm": Joined("layer_norm_backward", _LAYER, partial(_apart, "layer_norm")),
    "rms_norm": Joined(
        "rms_norm_backward", ("dy", "x", "saved_inv_rms", "weight", "dsum"), partial(_apart, "rms_norm")
    ),
}


def in_rows(*arrays: Any, host: bool = True) -> bool:
    """Whether they lie one row behind the other, in memory of the host where that is asked."""
    if host and settings.current().device not in (None, "cpu"):
        return False
    for x in arrays:
        if x is None:
            continue
        storage: Any = x if type(x) is np.ndarray else enter(x, "x")[0]
        if not ((not host or type(storage) is np.ndarray) and storage.flags.c_contiguous and storage.size):
            return False
    return True


def _fit(shape: tuple[int, ...], dims: int, arrays: Any, parameters: Any, others: Any) -> bool:
    """Whether arrays that will be looked at as rows go together; what does not is refused by the other way."""
    if type(dims) is not int or not 1 <= dims < len(shape):
        return False
    one = (*shape[:-dims], *(1,) * dims)
    wanted = ((arrays[:1], shape), (others, shape), (arrays[2:], one), (parameters, shape[-dims:]))
    return all(x is None or tuple(x.shape) == each for xs, each in wanted for x in xs)
