"""Softmax, losses and batch norm of `numbaprims.frontends.torch`: gradients of both orders, and torch's values."""

import pytest

import numbaprims

torch = pytest.importorskip("torch")
from test_frontends_torch import both_orders, leaf  # noqa: E402
from torch.nn import functional  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402

pytestmark = pytest.mark.cpu
CLASSES = torch.tensor([[0, 1], [-100, 3], [2, 2]])
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=torch.float64)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def positive(*shape):
    return (torch.rand(*shape, dtype=torch.float64) + 0.5).requires_grad_()


@pytest.mark.parametrize("axis", [0, -2, 2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name, axis):
    x = leaf(3, 2, 4)
    both_orders(lambda x: getattr(nbt, name)(x, axis=axis), x)
    torch.testing.assert_close(getattr(nbt, name)(x, axis=axis), getattr(functional, name)(x, axis))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_losses(reduction, weight):
    x, soft = leaf(3, 4, 2), positive(3, 4, 2)
    words = {"weight": weight, "reduction": reduction}
    smooth = {**words, "label_smoothing": 0.1}
    for ours, theirs, target, how in (
        (nbt.nll_loss, functional.nll_loss, CLASSES, words),
        (nbt.softmax_cross_entropy, functional.cross_entropy, CLASSES, words),
        (nbt.softmax_cross_entropy, functional.cross_entropy, CLASSES, smooth),
        (nbt.softmax_cross_entropy, functional.cross_entropy, soft.detach(), smooth),
    ):
        both_orders(lambda x, f=ours, t=target, how=how: f(x, t, **how), x, fast=True)
        torch.testing.assert_close(ours(x, target, **how), theirs(x, target, **how))
    both_orders(lambda x, soft: nbt.softmax_cross_entropy(x, soft, **smooth), x, soft, fast=True)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_batch_norm(mode, layout):
    x, shape = leaf(3, 2, 4, 2), (1, 2, 4, 2) if mode == "per_activation" else (2,)
    scale, shift, mean, var = leaf(*shape), leaf(*shape), leaf(*shape), positive(*shape)
    how = {"mode": mode, "layout": layout, "eps": 0.1}
    both_orders(lambda *given: nbt.batch_norm_train(*given, **how)[0], x, scale, shift, fast=True)
    bent = {**how, "activation": ("softplus", {"beta": 2.0})}
    both_orders(lambda *given: nbt.batch_norm_train(*given, **bent)[0], x, scale, shift, fast=True)
    both_orders(lambda *given: nbt.batch_norm(*given, activation="tanh", **how), x, scale, shift, mean, var, fast=True)
    fixed = mean.detach(), var.detach()
    both_orders(lambda *given: nbt.batch_norm(*given, *fixed, **how), x, scale, shift, fast=True)


def test_norms_of_rows():
    x, other, weight, bias = leaf(2, 3, 4), leaf(2, 3, 4), leaf(3, 4), leaf(3, 4)
    for how in ({"normalized_dims": 2, "eps": 0.1}, {"normalized_dims": 2, "eps": 0.1, "activation": "tanh"}):
        both_orders(lambda *given, how=how: nbt.layer_norm(*given, **how), x, weight, bias, fast=True)
        both_orders(lambda *given, how=how: nbt.rms_norm(*given, **how), x, weight, fast=True)
    both_orders(lambda x: nbt.layer_norm_train(x, eps=0.1)[0], x, fast=True)
    both_orders(lambda x, bias: nbt.layer_norm(x, None, bias, eps=0.1), x, leaf(4), fast=True)

    def added(x, other, weight, bias):
        y, total = nbt.layer_norm(x, weight, bias, normalized_dims=2, eps=0.1, residual=other)
        z, again = nbt.rms_norm(y, weight, normalized_dims=2, eps=0.1, residual=total)
        return z + 2 * again

    both_orders(added, x, other, weight, bias, fast=True)
    torch.testing.assert_close(nbt.layer_norm(x, residual=other)[0], functional.layer_norm(x + other, (4,)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_norms_of_channels(layout):
    x, weight, bias = leaf(2, 4, 3, 4), leaf(4), leaf(4)
    how = {"layout": layout, "eps": 0.1}
    for more in ({}, {"activation": "silu"}):
        both_orders(
            lambda x, *given, more=more: nbt.group_norm(x, 2, *given, **how, **more), x, weight, bias, fast=True
        )
        both_orders(lambda *given, more=more: nbt.instance_norm(*given, **how, **more), x, weight, bias, fast=True)
    both_orders(lambda x: nbt.group_norm_train(x, 2, **how)[0], x, fast=True)
    both_orders(lambda x: nbt.instance_norm_train(x, **how)[0], x, fast=True)


def compared(ours, theirs, tolerance, x, *given):
    """Values and gradients of both on the same tensors, torch's in float64: its own in halves round on the way."""
    y_shape, found = ours(x, *given).shape, []
    dy = torch.linspace(-1, 1, y_shape.numel(), dtype=x.dtype).reshape(y_shape)
    for function, wide in ((ours, False), (theirs, True)):
        leaves = [z.detach().clone(memory_format=torch.preserve_format) for z in (x, *given)]
        leaves = [(z.double() if wide else z).requires_grad_() for z in leaves]
        y = function(*leaves)
        found.append([y, *torch.autograd.grad(y, leaves, dy.to(y.dtype))])
    assert [z.dtype for z in found[0]] == [x.dtype, x.dtype, *(z.dtype for z in given)]
    for mine, other in zip(*found, strict=True):
        assert mine.isfinite().all() and mine.any()
        limit = tolerance * float(other.detach().abs().max())
        torch.testing.assert_close(mine.double(), other, rtol=tolerance, atol=limit)
    return found[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)], ids=["f32", "bf16"])
def test_is_torchs(dtype, tolerance):
    x, scale, shift = leaf(4, 6, 5, 3, dtype=dtype), leaf(6, dtype=torch.float32), leaf(6, dtype=torch.float32)
    statistics = torch.randn(6), torch.rand(6) + 0.5
    classes = torch.randint(0, 6, (4, 5, 3))
    compared(lambda x: nbt.softmax(x, axis=1), lambda x: functional.softmax(x, 1), tolerance, x)
    compared(lambda x: nbt.log_softmax(x, axis=3), lambda x: functional.log_softmax(x, 3), tolerance, x.transpose(1, 2))
    compared(
        lambda x: nbt.softmax_cross_entropy(x, classes), lambda x: functional.cross_entropy(x, classes), tolerance, x
    )
    rows = leaf(5, 3, 6, dtype=dtype), scale, shift
    compared(nbt.layer_norm, lambda x, *given: functional.layer_norm(x, (6,), *given), tolerance, *rows)
    compared(nbt.rms_norm, lambda x, w: functional.rms_norm(x, (6,), w, 1e-5), tolerance, *rows[:2])
    for layout in (torch.contiguous_format, torch.channels_last):
        given = x.to(memory_format=layout), scale, shift
        y, dx, *_ = compared(
            lambda x, *given: nbt.group_norm(x, 3, *given),
            lambda x, *given: functional.group_norm(x, 3, *given), tolerance, *given,
        )  # fmt: skip
        assert y.is_contiguous(memory_format=layout) and dx.is_contiguous(memory_format=layout)
        compared(
            nbt.instance_norm,
            lambda x, *given: functional.instance_norm(x, None, None, *given),
            tolerance, *given,
        )  # fmt: skip
        for training in (False, True):

            def ours(x, scale, shift, training=training):
                if training:
                    return nbt.batch_norm_train(x, scale, shift)[0]
                return nbt.batch_norm(x, scale, shift, *statistics)

            def theirs(x, scale, shift, training=training):
                return functional.batch_norm(x, *(z.to(x.dtype) for z in statistics), scale, shift, training)

            y, dx, *_ = compared(ours, theirs, tolerance, *given)
            assert y.is_contiguous(memory_format=layout) and dx.is_contiguous(memory_format=layout)


def test_autocast_is_torchs():
    x, target = torch.randn(3, 4), torch.tensor([0, 1, 3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = nbt.linear(x, torch.randn(4, 4))
        pairs = [
            (nbt.softmax(half), functional.softmax(half, -1)),
            (nbt.log_softmax(half), functional.log_softmax(half, -1)),
            (nbt.softmax_cross_entropy(half, target), functional.cross_entropy(half, target)),
            (nbt.nll_loss(half, target, weight=x[0]), functional.nll_loss(half, target, x[0])),
        ]
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def test_what_is_kept_and_computed_once(monkeypatch):
    x, launched = leaf(3, 4), []
    from numbaprims.ops import _cross_entropy

    real = _cross_entropy._losses.run
    monkeypatch.setattr(_cross_entropy._losses, "run", lambda *given: launched.append(1) or real(*given))
    nbt.softmax_cross_entropy(x, CLASSES[:, 0]).backward()
    assert x.grad.any() and len(launched) == 1, "the sums of exponentials are those of the forward pass"
    p = nbt.softmax(x)
    assert [z is not None and z.data_ptr() for z in p.grad_fn.saved_tensors] == [p.data_ptr()]


@pytest.mark.parametrize("training", [True, False])
def test_modules_take_an_activation(training, monkeypatch):
    """In the passes of the batch norm, both ways; values, gradients and running statistics are torch's."""
    ours, theirs = nbt.nn.BatchNorm2d(3, activation="silu"), torch.nn.BatchNorm2d(3)
    x, dy = (torch.randn(4, 3, 5, 2) for _ in range(2))
    found = []
    for layer in (ours.train(training), theirs.train(training)):
        given = x.clone().requires_grad_()
        with monkeypatch.context() as patch:
            if training:  # at inference gradients go through it apart
                patch.setattr(nbt.activations, "activation", None)
            y = layer(given) if layer is ours else functional.silu(layer(given))
            y.backward(dy)
        found.append(
            (y.detach(), given.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var)
        )
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_running_statistics_have_no_gradient():
    x, one = leaf(5, 2), torch.ones(2, dtype=torch.float64)
    y, mean, inv_std, *running = nbt.batch_norm_train(x, one, one, one, one, momentum=0.5)
    assert y.requires_grad and not any(z.requires_grad for z in (mean, inv_std, *running))
    plain = numbaprims.batch_norm_train(x.detach(), one, one, one, one, momentum=0.5)
    for mine, other in zip((y, mean, inv_std, *running), plain, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 3), (2, 4, 0)])
def test_gradients_of_nothing_are_zero(shape):
    modules = [nbt.nn.BatchNorm1d(4).eval()] + ([nbt.nn.GroupNorm(2, 4)] if shape[0] == 0 else [])
    for module in modules:
        x = torch.zeros(shape, requires_grad=True)
        module(x).sum().backward()
        assert x.grad.shape == shape
        assert all(torch.equal(p.grad, torch.zeros(4)) for p in module.parameters())


def test_softmax_of_no_dimension_and_bytes_as_classes():
    for name in ("Softmax", "LogSoftmax"):
        x = torch.tensor(3.0)
        assert torch.equal(getattr(nbt.nn, name)(0)(x), getattr(torch.nn, name)(0)(x))
    x, classes = torch.randn(3, 4), torch.tensor([0, 3, 2], dtype=torch.uint8)
    for name in ("CrossEntropyLoss", "NLLLoss"):
        torch.testing.assert_close(getattr(nbt.nn, name)()(x, classes), getattr(torch.nn, name)()(x, classes))


def test_torch_func_and_out():
    x = torch.randn(3, 4, dtype=torch.float64)
    found = torch.func.grad(lambda x: nbt.softmax_cross_entropy(x, CLASSES[:, 1]))(x)
    leaf_of = x.clone().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(functional.cross_entropy(leaf_of, CLASSES[:, 1]), leaf_of)[0])
    with pytest.raises(TypeError, match="out is given and an input requires grad"):
        nbt.softmax(leaf_of, out=torch.empty_like(x))
    out = torch.empty_like(x)
    assert nbt.softmax(x, out=out) is out
    with pytest.raises(TypeError, match="unexpected keyword argument 'dim'"):
        nbt.softmax(leaf_of, dim=1)


@pytest.mark.parametrize("words", [{"size": 3}, {"size": 4, "alpha": 0.5, "beta": 0.5, "k": 2.0}])
def test_lrn(words):
    x = leaf(2, 5, 3, 2)
    both_orders(lambda x: nbt.lrn(x, **words), x, fast=True)
    torch.testing.assert_close(nbt.lrn(x, **words), functional.local_response_norm(x, **words))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_lrn_within_a_channel(layout):
    both_orders(lambda x: nbt.lrn(x, 2, alpha=0.5, mode="within_channel", layout=layout), leaf(1, 3, 4, 2), fast=True)
