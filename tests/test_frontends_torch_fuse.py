"""`numbaprims.frontends.torch.fuse`: modules of torch become fused networks that compute the same."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import numbaprims  # noqa: E402
from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.frontends.torch.fuse import _ACTIVATIONS  # noqa: E402
from numbaprims.fusion import layers  # noqa: E402
from numbaprims.fusion.layers import Call  # noqa: E402

pytestmark = pytest.mark.cpu
nn = torch.nn


@pytest.fixture(autouse=True)
def by_definition():
    torch.manual_seed(0)
    with numbaprims.config(device="reference"):
        yield


def trained(*modules):
    """A sequence in eval mode whose statistics are not those of the beginning."""
    module = nn.Sequential(*modules)
    for each in module.modules():
        for tensor in (*each.parameters(recurse=False), *each.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data.uniform_(0.3, 1.0) if tensor.ndim == 1 else tensor.data.normal_(0, 0.3)
    return module.eval()


def agrees(module, x, **words):
    fused = nbt.fuse(module, x, **words)
    with torch.no_grad():
        for images in (x, x[:1], x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x):
            y = fused(images)
            torch.testing.assert_close(y, module(images), rtol=1e-4, atol=1e-5)
            assert not y.requires_grad
    return fused


def calls(fused):
    """The modules that were called as they are."""
    found = [node.layer for node in fused.network._graph.nodes]
    return [type(layer.function).__name__ for layer in found if isinstance(layer, Call)]


def test_a_network():
    module = trained(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.BatchNorm2d(8), nn.GELU(), nn.Sequential(nn.AvgPool2d(2))),
        nn.Dropout(), nn.Identity(), nn.PReLU(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        nn.LogSoftmax(1),
    )  # fmt: skip
    x = torch.randn(2, 3, 13, 12)
    fused = agrees(module, x)
    assert [len(stack.layers) for stack in fused.network.stacks] == [5] and calls(fused) == ["LogSoftmax"]
    assert "folded into its weights" in str(fused.network) and repr(fused.network) in repr(fused)
    exact = agrees(module, x, exact=True, strategy="one")
    assert [(len(stack.layers), stack.most) for stack in exact.network.stacks] == [(7, 1)]
    twin = pickle.loads(pickle.dumps(fused))
    assert torch.equal(twin(x), fused(x))
    module[0].weight.data.zero_()
    assert torch.equal(twin(x), fused(x)), "weights are copied"


@pytest.mark.parametrize("kind", _ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_activations(kind):
    arguments = {
        nn.Threshold: (0.1, -2.0),
        nn.LeakyReLU: (0.3,),
        nn.ELU: (0.5,),
        nn.CELU: (0.5,),
        nn.Softplus: (2.0, 3.0),
    }
    more = {nn.GELU: ("tanh",), nn.Hardtanh: (-0.5, 0.75)}
    for given in {(), (arguments | more).get(kind, ())} - ({()} if kind is nn.Threshold else set()):
        fused = agrees(trained(nn.MaxPool2d(1), kind(*given)), 3 * torch.randn(2, 3, 4, 5))
        assert not calls(fused) and len(fused.network.stacks) == 1


def test_modules_of_other_ranks():
    for rank, shape in ((1, (2, 4, 9)), (3, (2, 4, 6, 5, 4))):
        module = trained(*(getattr(nn, f"{name}{rank}d")(*given) for name, given in [
            ("Conv", (4, 6, 3, 1, "same")), ("BatchNorm", (6,)), ("MaxPool", (2,)), ("AvgPool", (2,)),
            ("BatchNorm", (6,)), ("AdaptiveMaxPool", (1,)),
        ]), nn.Tanh())  # fmt: skip
        assert not calls(agrees(module, torch.randn(shape)))
    dense = agrees(trained(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.SiLU(), nn.Hardtanh(0, 1)), torch.randn(5, 4))
    assert len(dense.network._fused.items) == 2


def test_what_is_called_as_it_is():
    class Odd(nn.ReLU):
        def forward(self, x):
            return super().forward(x).flip(-1)

    module = trained(
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.AdaptiveAvgPool2d(4),
        nn.AvgPool2d(1, divisor_override=2), nn.BatchNorm2d(4, track_running_stats=False),
        Odd(), nn.Upsample(scale_factor=2), nn.ReLU(),
    )  # fmt: skip
    fused = agrees(module, torch.randn(2, 4, 8, 8)[:1])
    assert calls(fused) == ["Conv2d", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "Expression", "Upsample"]
    # one image without N
    image = nbt.fuse(trained(nn.MaxPool2d(2), nn.ReLU()), torch.randn(3, 4, 4))
    assert calls(image) == ["MaxPool2d"] and image(torch.ones(3, 4, 4)).shape == (3, 2, 2)


@pytest.mark.parametrize(
    "middle",
    [nn.GroupNorm(1, 3), nn.ConvTranspose2d(3, 3, 1), nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1))],
    ids=lambda module: type(module).__name__,
)
def test_weights_are_copied(middle):
    module, x = trained(nn.Conv2d(3, 3, 1), middle, nn.Conv2d(3, 3, 1)), torch.randn(2, 3, 4, 4)
    fused = nbt.fuse(module, x)
    y = fused(x)
    torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-5)
    assert not y.requires_grad
    with torch.no_grad():
        for each in (*module.parameters(), *module.buffers()):
            each.mul_(2)
    assert torch.equal(fused(x), y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types(dtype):
    module = trained(nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.Sigmoid())
    x = torch.randn(1, 3, 4, 4)
    y = nbt.fuse(copy.deepcopy(module).to(dtype), x.to(dtype))(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), module(x), rtol=2e-2, atol=2e-2)


def test_training_and_gradients_are_refused():
    module, x = trained(nn.BatchNorm2d(3), nn.ReLU()), torch.randn(1, 3, 4, 4)
    fused = nbt.fuse(module, x)
    with pytest.raises(ValueError, match=r"module is in training mode \(Sequential, 0, 1\); call module.eval"):
        nbt.fuse(module.train(), x)
    with pytest.raises(RuntimeError, match="call eval"):
        fused.train()(x)
    fused.eval()
    with pytest.raises(TypeError, match="x requires grad and a fused network records none; call under torch.no_grad"):
        fused(x.requires_grad_())
    with torch.no_grad():
        assert fused(x).min() == 0
    with pytest.raises(TypeError, match="module is a list"):
        nbt.fuse([nn.ReLU()], x)
    with pytest.raises(TypeError, match="example is a tuple"):
        nbt.fuse(module.eval(), (1, 3, 4, 4))
    asked = nn.Sequential(nn.ReLU()).eval()
    asked.register_forward_hook(lambda *_: pytest.fail("it was run"))
    for dtype in (torch.int32, torch.complex64):
        with pytest.raises(TypeError, match=f"example's dtype is {dtype}; fuse takes float64"):
            nbt.fuse(asked, torch.ones(1, 3, 4, 4, dtype=dtype))


@pytest.mark.parametrize("planned", [False, True])
def test_autocast_changes_nothing(planned):
    module = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.GELU()).eval()
    x = torch.randn(2, 5, 8)
    with torch.autocast("cpu", enabled=planned):
        fused = nbt.fuse(module, x)
    y = fused(x)
    with torch.autocast("cpu"):
        assert torch.equal(fused(x), y) and y.dtype == torch.float32


# ---------------------------------------------------------------- hooks


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(x) + x


def normed(module):
    """Weight norm whose weight in memory is another than that of the next call."""
    nn.utils.weight_norm(module[0])
    with torch.no_grad():
        module(torch.zeros(1, 4, 2, 2))
        module[0].weight_g.mul_(3)


def pruned(module):
    prune.l1_unstructured(module[0], "weight", amount=0.5)
    with torch.no_grad():
        module(torch.zeros(1, 4, 2, 2))
        module[0].weight_orig.mul_(3)


def hooks(at, name="register_forward_hook", hook=lambda module, given, y: 2 * y):
    return lambda module: getattr(module[at], name)(hook)


HOOKS = {
    "weight norm": normed,
    "pruning": pruned,
    "convolution": hooks(0),
    "before": hooks(0, "register_forward_pre_hook", lambda module, given: (3 * given[0],)),
    "activation": hooks(1),
    "sequence": hooks(2),
    "block": hooks(3),
    "part of a block": lambda module: hooks(0)([module[3].norm]),
    "whole": lambda module: hooks(0)([module]),
    "backward": hooks(1, "register_full_backward_hook", lambda module, dx, dy: (2 * dx[0],)),
    "another forward": lambda module: setattr(module[1], "forward", lambda x: 7 * x),
    "another forward of a block": lambda module: setattr(module[3], "forward", lambda x: 7 * x),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("what", HOOKS)
def test_hooks_are_called(what):
    convolution = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    module = trained(convolution, nn.ReLU(), nn.Sequential(nn.BatchNorm2d(4), nn.Tanh()), Block())
    HOOKS[what](module)
    x = torch.randn(2, 4, 6, 6)
    trains(module, x)
    agrees(module, x)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", functional.gelu, nn.SiLU()])
def test_transformers(norm_first, activation):
    words = {"batch_first": True, "norm_first": norm_first, "activation": activation}
    layer = nn.TransformerEncoderLayer(8, 2, 16, **words)
    norm = nn.LayerNorm(8, bias=False) if norm_first else None
    module = trained(nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False), layer)
    fused = agrees(module, torch.randn(2, 5, 8))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert kinds.count(layers.SelfAttention) == 3 and layers.Call not in kinds
    replaced = agrees(nbt.nn.replace(copy.deepcopy(module)), torch.randn(2, 5, 8))
    assert str(replaced.network) == str(fused.network)


@pytest.mark.parametrize("layer", [nn.LayerNorm((2, 5, 8)), nn.Softmax(-3), nn.Softmax(0)])
def test_what_is_over_all_images(layer):
    module, x = trained(nn.Tanh(), layer), torch.randn(2, 5, 8)
    fused = nbt.fuse(module, x)
    assert calls(fused) == [type(layer).__name__]
    torch.testing.assert_close(fused(x), module(x))
    agrees(trained(nn.GroupNorm(2, 8), nn.Softmax(-1)), torch.randn(2, 8))


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "activation", torch.sin),
        lambda layer: nn.utils.parametrizations.weight_norm(layer.linear1),
        lambda layer: layer.linear2.register_forward_hook(lambda module, given, y: 2 * y),
        lambda layer: setattr(layer, "self_attn", nn.MultiheadAttention(8, 2, add_zero_attn=True, batch_first=True)),
        lambda layer: setattr(layer.self_attn, "batch_first", False),
    ],
)
def test_transformers_that_are_called(change):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    change(layer)
    x, module = torch.randn(2, 5, 8), trained(layer)
    fused = nbt.fuse(module, x)
    assert any(isinstance(node.layer, layers.Call) for node in fused.network._graph.nodes)
    torch.testing.assert_close(fused(x), module(x), rtol=1e-4, atol=1e-5)


def test_a_sequence_without_a_batch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module, x = trained(nn.LayerNorm(8), layer), torch.randn(5, 8)
    torch.testing.assert_close(nbt.fuse(module, x)(x), module(x), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- with gradients


def trains(module, x, **words):
    """A fused module, whose gradients are the module's own."""
    twin = copy.deepcopy(module)
    fused = nbt.fuse(twin, x, gradients=True, **words)
    for images in (x, x[:1]):
        results = []
        for each in (module, fused):
            each.zero_grad()
            torch.manual_seed(1)
            given = images.clone().requires_grad_()
            y = each(given)
            (y * torch.cos(torch.arange(y.numel()).reshape(y.shape))).sum().backward()
            results.append((y.detach(), given.grad, [p.grad for p in each.parameters() if p.requires_grad]))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    return fused


def test_a_fused_network_has_the_gradients_of_its_module():
    module = trained(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(8), nn.GELU(), nn.Sequential(nn.AvgPool2d(2))),
        nn.Dropout(), nn.PReLU(8), nn.PReLU(), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(168, 5), nn.Sigmoid(),
    )  # fmt: skip
    x = torch.randn(2, 3, 6, 14)
    fused = trains(module, x)
    assert "stacks of operations: [9, 1]" in repr(fused)
    # statistics of the batch, and dropout, are not a stack's
    trains(module.train(), x)
    fused.train()
    assert "stacks of operations: [2, 2, 3, 1]" in repr(fused)
    module[1].requires_grad_(False)
    trains(module.eval(), x)
    twin = pickle.loads(pickle.dumps(fused.eval()))
    assert torch.equal(twin(x), fused(x))


def test_pruning_between_the_steps():
    module, x = trained(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU()), torch.randn(2, 4, 6, 6)
    fused = nbt.fuse(module, x, gradients=True)
    pruned(module)
    torch.testing.assert_close(fused(x), module(x))


def test_planning_leaves_every_mode_as_it_is():
    module = nn.Sequential(Block(), nn.ReLU())
    module[0].norm.eval()
    fused = nbt.fuse(module, torch.randn(2, 4, 3, 3), gradients=True)
    assert [each.training for each in module.modules()] == [True, True, False, True]
    trains(module, torch.randn(2, 4, 3, 3))
    assert fused.module[0].norm.num_batches_tracked == 0


def test_layers_of_no_stack_train_as_they_are():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    trains(trained(nn.Tanh(), nn.LayerNorm(8), nn.GroupNorm(5, 5), layer), torch.randn(2, 5, 8))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_depthwise_convolutions_train_in_stacks(memory):
    module = trained(
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6(),
        nn.Conv2d(4, 4, (3, 2), 2, (1, 0), groups=4), nn.Conv2d(4, 4, 1),
    )  # fmt: skip
    x = torch.randn(2, 4, 9, 12).contiguous(memory_format=memory)
    assert "stacks of operations: [5]" in repr(trains(module, x))
    module[0].requires_grad_(False)
    trains(module, x)


def test_training_reaches_what_torch_reaches():
    """Steps of an optimizer over the parameters of either module."""
    module = trained(nn.BatchNorm2d(4), nn.PReLU(4), nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(4), nn.Tanh())
    x, target, losses = torch.randn(3, 4, 9, 9), torch.randn(3, 4, 9, 9), []
    with numbaprims.config(device="cpu"):
        for each in (module, nbt.fuse(copy.deepcopy(module), x, gradients=True)):
            optimizer = torch.optim.SGD(each.parameters(), lr=0.5)
            for _ in range(5):
                optimizer.zero_grad()
                loss = ((each(x) - target) ** 2).mean()
                losses.append(loss.item())
                loss.backward()
                optimizer.step()
    assert losses[:5] == pytest.approx(losses[5:], rel=1e-5) and losses[0] > losses[4]


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_gradients_in_any_memory_format_and_rank(memory):
    module = trained(nn.BatchNorm2d(4), nn.SiLU(), nn.AvgPool2d(2, ceil_mode=True))
    trains(module, torch.randn(2, 4, 5, 7).contiguous(memory_format=memory))
    trains(trained(nn.BatchNorm1d(4), nn.Tanh()), torch.randn(5, 4))
    trains(trained(nn.BatchNorm3d(4), nn.PReLU()), torch.randn(2, 4, 3, 4, 5))
    trains(trained(nn.MaxPool1d(2), nn.ReLU6()), torch.randn(2, 4, 10))
