"""Rotary position embedding with gradients of any order: the way back of one is the other."""

from __future__ import annotations

from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch.recording import differentiable, recorded
from numbaprims.frontends.torch.rules import adjoint, wrapped

_rope = wrapped(adjoint("rope", "x cos sin positions"))


def _composed(
    x: Any, cos: Any, sin: Any, positions: Any = None, interleaved: bool = False, rotary_dims: int | None = None
) -> Any:
    """By torch's own functions: for tables that are learned."""
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    if x.ndim > 2:
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    half = cos.shape[-1]
    turning, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turning[..., ::2], turning[..., 1::2]) if interleaved else (turning[..., :half], turning[..., half:])
    found = (a * cos - b * sin, a * sin + b * cos)
    turned = torch.stack(found, -1).flatten(-2) if interleaved else torch.cat(found, -1)
    return torch.cat((turned, rest), -1).to(x.dtype)


@differentiable(numbaprims.rope)
def rope(x: Any, cos: Any, sin: Any, *, out: Any = None, **words: Any) -> Any:
    if out is None and recorded(cos, sin):
        numbaprims.rope(x.detach(), cos.detach(), sin.detach(), **words)  # says what is wrong
        return _composed(x, cos, sin, **words)
    return _rope(x, cos, sin, out=out, **words)
