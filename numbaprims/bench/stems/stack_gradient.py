"""The gradients of stacks by rivals: torch's autograd, and our own layers' gradients one by one.

What a forward call keeps for them (places of maxima, results) is there before anything is timed; ours computes it
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Contender
from numbaprims.bench.stems import shared
from numbaprims.ops.batch_norm import batch_norm_backward_fixed
from numbaprims.stacks.operations import Operation, Window

Numbers = Iterable[tuple[Operation, np.ndarray]]


def of_module(torch: Any, module: Any, dy: Any, x: Any) -> Contender:
    """dx, and the gradients of the module's parameters."""
    x = x.detach().requires_grad_()
    parameters = list(module.requires_grad_().parameters())
    y = module(x)
    return shared.gradient(torch, y, [x, *parameters], dy)


def _pool(x: Any, each: Window, layout: str) -> tuple[Any, Callable[[Any], Any]]:
    """A pooling's result, and its gradient."""
    words: dict[str, Any] = {"stride": each.stride, "padding": each.before, "dilation": each.dilation,
                             "ceil_mode": each.ceil, "layout": layout}  # fmt: skip
    size = x.shape[1:3] if layout == "NHWC" else x.shape[2:]
    if each.op == "max":
        y, places = numbaprims.max_pool(x, each.kernel, return_indices=True, **words)
        words |= {"indices": places, "size": size}
        return y, lambda g: numbaprims.max_pool_backward(g, None, each.kernel, **words)
    words["count_include_pad"] = each.count_include_pad
    return numbaprims.avg_pool(x, each.kernel, **words), partial(
        numbaprims.avg_pool_backward, size=size, kernel_size=each.kernel, **words
    )


def _norm(x: Any, own: np.ndarray, layout: str) -> tuple[Any, Callable[[Any], Any]]:
    """The same of a batch norm."""
    mean, scale, shift = own
    one, words = np.ones_like(mean), dict[str, Any](eps=0.0, layout=layout)
    y = numbaprims.batch_norm(x, scale, shift, mean, one, **words)
    return y, lambda g: batch_norm_backward_fixed(g, x, scale, mean, one, **words)[0]


def of_layers(dy: Any, x: Any, numbers: Numbers, layout: str) -> Contender | None:
    """One call a layer; None where a layer has no gradient here."""
    calls: list[Callable[[Any], Any]] = []
    for each, own in numbers:
        if isinstance(each, Window) and each.before == each.after:
            x, back = _pool(x, each, layout)
        elif not isinstance(each, Window) and each.kind == "batch_norm":
            x, back = _norm(x, own, layout)
        elif not isinstance(each, Window) and each.kind == "relu":
            x = numbaprims.relu(x)
            back = partial(numbaprims.relu_backward, y=x)
        else:
            return None
        calls.append(back)

    def call() -> Any:
        g = dy
        for back in reversed(calls):
            g = back(g)
        return shared.channels_first(g, layout == "NHWC")

    return shared.returned(np, call)
