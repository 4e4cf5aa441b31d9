"""Rotary position embedding of tensors: gradients of x of any order, and of tables that are learned."""

import pytest

import numbaprims

torch = pytest.importorskip("torch")
from test_frontends_torch import both_orders, leaf  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients(interleaved):
    cos, sin = (torch.from_numpy(table) for table in numbaprims.rope_frequencies(4, 4, dtype="float64"))
    places, x = torch.tensor([3, 1, 2]), leaf(2, 2, 3, 5)
    words = {"positions": places, "interleaved": interleaved}
    both_orders(lambda x: nbt.rope(x, cos, sin, **words), x)
    cos, sin = (table.clone().requires_grad_() for table in (cos, sin))
    both_orders(lambda x, cos, sin: nbt.rope(x, cos, sin, **words), x, cos, sin, fast=True)
    torch.testing.assert_close(
        nbt.rope(x, cos, sin, **words), nbt.rope(x.detach(), cos.detach(), sin.detach(), **words)
    )
