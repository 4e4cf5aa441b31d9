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
