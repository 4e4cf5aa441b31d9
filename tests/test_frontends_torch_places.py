"""gather, embedding and pad with gradients of both orders, beside torch's own."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402

MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def check(ours, theirs, x):
    """Values, gradients, and gradients of these."""
    found = []
    for function in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        torch.manual_seed(1)
        (dx,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        (ddx,) = torch.autograd.grad((dx * torch.randn_like(dx)).sum(), leaf)
        found.append((y, dx, ddx))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("mode", MODES)
def test_pads(mode):
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    pads = ((0, 0), (0, 0), (1, 2), (3, 1))
    check(lambda t: nbt.pad(t, pads, mode), lambda t: functional.pad(t, (3, 1, 1, 2), MODES[mode]), x)


def test_indices():
    x, indices = torch.randn(4, 5, 3, dtype=torch.float64), torch.tensor([4, 0, 0, 2])
    check(lambda t: nbt.gather(t, indices, 1), lambda t: torch.index_select(t, 1, indices), x)
    with pytest.raises(IndexError, match=r"indices\[1\] is 9"):
        nbt.gather(x.requires_grad_(), torch.tensor([0, 9]))


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embeddings(padding_idx):
    weight, indices = torch.randn(6, 3, dtype=torch.float64), torch.tensor([[4, 2, 0], [2, 2, 5]])
    check(
        lambda t: nbt.embedding(t, indices, padding_idx),
        lambda t: functional.embedding(indices, t, padding_idx),
        weight,
    )


@pytest.mark.parametrize("words", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}, {"max_norm": 1.0}])
def test_the_module(words):
    theirs = torch.nn.Embedding(7, 5, **words)
    ours = nbt.nn.Embedding(7, 5, **words)
    ours.load_state_dict(theirs.state_dict())
    indices = torch.tensor([[1, 2, 6], [2, 2, 0]])
    for module in (ours, theirs):
        module(indices).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    assert type(nbt.nn.replace(theirs)) is nbt.nn.Embedding
