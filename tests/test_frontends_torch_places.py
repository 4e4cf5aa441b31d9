"""gather, embedding, pad, transform, concat and split with gradients of both orders, beside torch's own."""

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


def test_copies():
    x, y = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)
    check(lambda t: nbt.transform(t, (2, 0, 1)), lambda t: t.permute(2, 0, 1), x)
    check(lambda t: nbt.concat((t, y, 2 * t), 1), lambda t: torch.cat((t, y, 2 * t), 1), x)
    check(lambda t: nbt.concat((y, t), -2), lambda t: torch.cat((y, t), -2), x)
    check(lambda t: nbt.split(t, (2, 1, 2), -1)[2], lambda t: torch.split(t, (2, 1, 2), -1)[2], x)
    check(lambda t: nbt.split(t, 2)[0] * nbt.split(t, 2)[1], lambda t: t[:1] * t[1:], x)
    x.requires_grad_()
    with pytest.raises(TypeError, match="leave out away"):
        nbt.concat((x, y), 1, out=torch.empty(2, 7, 5, dtype=torch.float64))
    with torch.no_grad():
        parts = nbt.concat([x, y], 1), *nbt.split(x, (1, 1)), nbt.transform(x, (1, 0, 2))
    assert not any(part.requires_grad for part in parts)


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


def test_pads_that_torch_refuses():
    for layers in (torch.nn, nbt.nn):
        with pytest.raises((RuntimeError, ValueError), match=r"[Pp]ad"):
            layers.ReflectionPad1d(4)(torch.ones(1, 2, 4))
        with pytest.raises((RuntimeError, ValueError), match=r"[Pp]ad|wrapping"):
            layers.CircularPad1d(5)(torch.ones(1, 2, 4))
        with pytest.raises((RuntimeError, ValueError), match=r"[Pp]ad"):
            layers.ReplicationPad2d(1)(torch.ones(4))
    whole = torch.arange(6).reshape(1, 2, 3)
    assert torch.equal(nbt.nn.ConstantPad1d(1, 7)(whole), torch.nn.ConstantPad1d(1, 7)(whole)), "integers: by torch"


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
