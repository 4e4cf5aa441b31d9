"""The gradients of stacks by rivals: torch's autograd, and our own layers' gradients one by one.

What a forward call keeps for them (places of maxima, results) is there before anything is timed; ours computes it
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    return shared.returned(torch, lambda: torch.autograd.grad(y, [x, *parameters], dy, retain_graph=True))


def of_layers(dy: Any, x: Any, numbers: Numbers, layout: str) -> Contender | None:
    """One call a layer; None where a layer has no gradient here."""
    calls: list[Callable[[Any], Any]] = []
    last = layout == "NHWC"
    for each, own in numbers:
        if isinstance(each, Window):
            if each.before != each.after:
                return None
            words: dict[str, Any] = {"stride": each.stride, "padding": each.before, "dilation": each.dilation,
                                     "ceil_mode": each.ceil, "layout": layout}  # fmt: skip
            size = x.shape[1:3] if last else x.shape[2:]
            if each.op == "max":
                x, places = numbaprims.max_pool(x, each.kernel, return_indices=True, **words)
                words |= {"indices": places, "size": size}
                calls.append(lambda g, k=each.kernel, words=words: numbaprims.max_pool_backward(g, None, k, **words))
            else:
                words["count_include_pad"] = each.count_include_pad
                x = numbaprims.avg_pool(x, each.kernel, **words)
                back = numbaprims.avg_pool_backward
                calls.append(lambda g, back=back, k=each.kernel, s=size, words=words: back(g, s, k, **words))
        elif each.kind == "batch_norm":
            mean, scale, shift = own
            given, words = (x, scale, mean, np.ones_like(mean)), {"eps": 0.0, "layout": layout}
            calls.append(lambda g, given=given, words=words: batch_norm_backward_fixed(g, *given, **words)[0])
            x = numbaprims.batch_norm(x, scale, shift, *given[2:], **words)
        elif each.kind == "relu":
            x = numbaprims.relu(x)
            calls.append(lambda g, y=x: numbaprims.relu_backward(g, y))
        else:
            return None
    latest: list[Any] = [None]

    def call() -> None:
        g = dy
        for back in reversed(calls):
            g = back(g)
        latest[0] = g

    return Contender(call, lambda: shared.channels_first(latest[0], last))
