"""CTC of `numbaprims.frontends.torch`: gradients of both orders, and torch's values."""

import pytest

torch = pytest.importorskip("torch")
from test_frontends_torch import both_orders  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss(reduction):
    torch.manual_seed(0)
    scores = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 1, 2], [3, 2, 0], [1, 1, 1]])
    given = targets, torch.tensor([5, 4, 4]), [3, 1, 3]
    words = {"reduction": reduction, "zero_infinity": True}
    # of the third there is no path
    both_orders(lambda x: nbt.ctc_loss(x, *given, **words), scores.log_softmax(2).detach().requires_grad_())
    ours = nbt.ctc_loss(nbt.log_softmax(scores, axis=2), *given, **words)
    theirs = torch.nn.functional.ctc_loss(scores.log_softmax(2), targets, (5, 4, 4), (3, 1, 3), **words)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss.square().sum(), scores, retain_graph=True) for loss in (ours, theirs))
    )


@pytest.mark.parametrize("words", [{"zero_infinity": True}, {"blank": 3, "reduction": "sum"}, {"reduction": "none"}])
def test_the_module(words):
    torch.manual_seed(0)
    given = (
        torch.tensor([[1, 2], [0, 0], [2, 1]]) + (words.get("blank", 0) == 0),
        torch.tensor([6, 4, 5]),
        torch.tensor([2, 2, 0]),
    )
    for shape, more in (((6, 3, 4), given), ((6, 4), (given[0][0], torch.tensor(6), torch.tensor(2)))):
        found = []
        scores = torch.randn(*shape, requires_grad=True)
        for module in (nbt.nn.CTCLoss(**words), torch.nn.CTCLoss(**words)):
            loss = module(scores.log_softmax(-1), *more)
            found.append([loss, *torch.autograd.grad(loss.sum(), scores)])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_model_with_its_loss_is_replaced():
    model = torch.nn.ModuleDict({"loss": torch.nn.CTCLoss(blank=2)})
    assert type(nbt.nn.replace(model)["loss"]) is nbt.nn.CTCLoss
    assert model["loss"].blank == 2


def test_targets_changed_in_place_are_noticed():
    x = torch.randn(4, 2, 5).log_softmax(2).requires_grad_()
    targets, lengths = torch.tensor([[1, 2], [3, 1]]), [torch.tensor([4, 4]), torch.tensor([2, 2])]
    for change in (targets, *lengths):
        y = nbt.ctc_loss(x, targets, *lengths, reduction="sum")
        torch.autograd.grad(y, x, retain_graph=True)
        change.add_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y, x)
