"""Cumulative sums of tensors: values as torch's, gradients of any order."""

import pytest

torch = pytest.importorskip("torch")
from test_frontends_torch import both_orders, leaf  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402


@pytest.mark.parametrize("words", [{}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True}])
def test_gradients(words):
    x = leaf(3, 5)
    for axis in (0, 1):
        both_orders(lambda x, axis=axis: nbt.cumsum(x, axis, **words), x)
        if not words:
            torch.testing.assert_close(nbt.cumsum(x, axis), torch.cumsum(x, axis))
    whole = torch.arange(6).reshape(2, 3)
    torch.testing.assert_close(nbt.cumsum(whole, 0), whole.cumsum(0))


def test_products_have_gradients_at_zeros():
    x = torch.rand(2, 4, dtype=torch.float64) + 0.5
    x[0, 1] = x[1, 2] = x[1, 3] = 0
    for words in ({}, {"exclusive": True}, {"reverse": True}, {"axis": 0, "exclusive": True, "reverse": True}):
        both_orders(lambda x, words=words: nbt.cumprod(x, **words), x.clone().requires_grad_())
    torch.testing.assert_close(nbt.cumprod(x, 1), torch.cumprod(x, 1))
