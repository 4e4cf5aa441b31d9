"""Dropout with gradients of any order: each is the same function of the gradient."""

from __future__ import annotations

from numbaprims.frontends.torch.rules import adjoint, wrapped

dropout = wrapped(adjoint("dropout", "x"))
