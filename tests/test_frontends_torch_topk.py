"""topk of tensors: values and places as torch's, gradients of any order."""

import pytest

torch = pytest.importorskip("torch")
from test_frontends_torch import both_orders, leaf  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402


@pytest.mark.parametrize("largest", [True, False])
def test_gradients(largest):
    x = leaf(3, 7)
    for axis in (0, 1):
        both_orders(lambda x, axis=axis: nbt.topk(x, 2, axis, largest=largest)[0], x)
        for have, want in zip(nbt.topk(x, 2, axis, largest=largest), x.topk(2, axis, largest=largest), strict=True):
            torch.testing.assert_close(have, want)
    values, indices = nbt.topk(x, 2)
    assert values.requires_grad and not indices.requires_grad
