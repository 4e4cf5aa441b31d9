"""Attention by `numbaprims.frontends.torch.fuse`: modules, functions, and those of torchvision's Swin transformers."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402
from torch_fuse_cases import Made, agrees, called  # noqa: E402

import numbaprims  # noqa: E402
from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.frontends.torch.fuse_torchvision import FUNCTIONS  # noqa: E402
from numbaprims.fusion import layers  # noqa: E402

pytestmark = pytest.mark.cpu
nn = torch.nn


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_of_a_module(bias, batch_first):
    """torch's with other dimensions first, and what is no attention to oneself, as they are."""

    def forward(self, x):
        y = self.attention(x, x, x)[0]
        return self.other(y, x, x, need_weights=False)[0]

    parts = {name: nn.MultiheadAttention(8, 2, bias=bias, batch_first=batch_first) for name in ("attention", "other")}
    module = Made(forward, **parts)
    fused = nbt.fuse(module, x := torch.randn(3, 5, 8))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert kinds.count(layers.SelfAttention) == batch_first and kinds.count(layers.Call) == 2 - batch_first
    torch.testing.assert_close(fused(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_by_a_function(masked):
    """As of timm and transformers: parts of one product, turned so that they come first, and merged behind."""

    def forward(self, x):
        n, length, size = x.shape
        parts = self.qkv(self.norm(x)).reshape(n, length, 3, self.heads, size // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mask = self.mask if masked else None
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not masked, scale=0.3)
        y = y.transpose(1, 2).contiguous().view(n, length, size)
        return (x + self.proj(y)).mean(dim=1).unsqueeze(-1)[:, 1:]

    module = Made(
        forward, norm=nn.LayerNorm(8), qkv=nn.Linear(8, 24), proj=nn.Linear(8, 8), mask=nn.Buffer(torch.ones(5, 5))
    )
    module.mask.normal_()
    module.heads = 2
    fused = agrees(module, torch.randn(2, 5, 8))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert kinds.count(layers.Attention) == 1 and called(fused) == ["mean"]
    assert kinds.count(layers.View) == 6 and kinds.count(layers.Reshape) == 1


@pytest.mark.parametrize("by", ["operators", "functions", "methods"])
def test_attention_by_products(by):
    """The scores written out, as of timm's older blocks, with a bias of positions."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if by == "operators":
            y = functional.softmax(q * 0.5 @ k.transpose(-2, -1) + self.bias, dim=-1) @ v
        elif by == "functions":
            y = torch.matmul(torch.softmax(torch.matmul(q, k.mT) / 2.0 + self.bias, -1), v)
        else:
            y = q.matmul(k.transpose(2, 3)).mul(0.5).add(self.bias).softmax(-1).matmul(v)
        return self.proj(y.transpose(1, 2).flatten(2))

    made = Made(forward, qkv=nn.Linear(8, 24), proj=nn.Linear(8, 8), bias=nn.Parameter(torch.randn(2, 5, 5)))
    fused = agrees(made, torch.randn(2, 5, 8))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert called(fused) == [] and kinds.count(layers.MatMul) == 2 and kinds.count(layers.Softmax) == 1


def test_what_no_product_or_softmax_is_called():
    def forward(self, x):
        y = torch.softmax(x, 0) + torch.softmax(x, -1, torch.float32).add(x) + x.softmax(dim=1, dtype=None)
        return y @ self.square + y @ y[:, 0].transpose(-1, -2)[:, None]

    fused = agrees(Made(forward, square=nn.Parameter(torch.randn(4, 4))), torch.randn(3, 2, 4, 4)[:1])
    assert called(fused) == ["softmax", "constant (4, 4), matmul"]


MASKS = {
    "added": (lambda x, own: own, 0),
    "open": (lambda x, own: own > 0, 0),
    "of each head": (lambda x, own: own[None, None].expand(1, 2, 4, 4) > 0, 0),
    "of the input": (lambda x, own: x.new_ones(4, 4).tril().bool(), 1),
    "of each image": (lambda x, own: own.expand(len(x), 1, 4, 4), 1),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_a_function(name):
    make, count = MASKS[name]

    def forward(self, x):
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=make(x, self.own))

    fused = agrees(Made(forward, own=nn.Buffer(torch.randn(4, 4))), torch.randn(2, 2, 4, 3), whole=count > 0)
    assert len(called(fused)) == count


def test_parameters_are_read_on_the_host(monkeypatch):
    """Those of a module on a GPU, where layers take none: each that a layer holds was asked for there."""
    own, asked = torch.Tensor.cpu, []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: (asked.append(tuple(x.shape)), own(x))[1])

    def forward(self, x):
        y = functional.layer_norm(x + self.places, (3,), self.weight) + self.token.expand(x.shape[0], -1, -1, -1)
        return functional.scaled_dot_product_attention(y, y, y, self.mask)

    shapes = {"places": (2, 4, 3), "weight": (3,), "token": (1, 2, 4, 3), "mask": (4, 4)}
    made = Made(forward, **{name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()})
    assert called(agrees(made, torch.randn(2, 2, 4, 3))) == []
    assert {*asked} >= {(2, 4, 3), (3,), (4, 4)}


def test_a_mask_of_two_images():
    module = Made(
        lambda self, x: functional.scaled_dot_product_attention(x, x, x, self.mask),
        mask=nn.Buffer(torch.randn(2, 2, 4, 4)),
    )
    fused = nbt.fuse(module, x := torch.randn(2, 2, 4, 3))
    assert called(fused) != []
    torch.testing.assert_close(fused(x), module(x))


def test_what_no_attention_layer_computes_is_called():
    def forward(self, x):
        y = functional.scaled_dot_product_attention(x, x[:, :1], x[:, 1:], is_causal=True, enable_gqa=True)
        z = functional.scaled_dot_product_attention(y[:, 0], x[:, 0], x[:, 1])
        return functional.scaled_dot_product_attention(z[:, None], x[:, :1], x[:, :1], dropout_p=0.0)

    fused = agrees(Made(forward), torch.randn(2, 2, 4, 3))
    assert called(fused) == ["scaled_dot_product_attention"], "of three dimensions"


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("module", ["attention", "layer", "encoder"])
def test_masks_of_modules(module, boolean):
    """A mask of what comes later, as of language models, and one for each image, which is no parameter."""
    closed = torch.ones(5, 5).triu(1).bool()
    mask = closed if boolean else torch.zeros(5, 5).masked_fill(closed, -torch.inf)

    def forward(self, x):
        if module == "attention":
            y = self.attention(x, x, x, attn_mask=self.mask, need_weights=False, is_causal=True)[0]
            return self.attention(y, y, y, None, False, self.mask)[0]
        part = getattr(self, module)
        y = part(x, self.mask, is_causal=True)
        return part(y, src_key_padding_mask=y[..., 0] > 5.0) if module == "layer" else y

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    parts = {"layer": layer, "encoder": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)}
    parts["attention"] = nn.MultiheadAttention(8, 2, batch_first=True)
    made = Made(forward, **parts)
    made.mask = nn.Buffer(mask)
    fused = agrees(made, torch.randn(2, 5, 8))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert kinds.count(layers.SelfAttention) == (1 if module == "layer" else 2)
    assert len(called(fused)) == (module == "layer")


# ---------------------------------------------------------------- torchvision's


def shifted_window_attention(
    x, qkv_weight, proj_weight, relative_position_bias, window_size, num_heads, shift_size, attention_dropout=0.0,
    dropout=0.0, qkv_bias=None, proj_bias=None, logit_scale=None, training=True,
):  # fmt: skip
    """Window by window, each element beside those of its window that were in its part of the image before the shift."""
    n, h, w, c = x.shape
    (down, across), width = window_size, c // num_heads
    if h % down or w % across:
        return x * 2
    up, left = (0 if window >= size else by for window, size, by in zip(window_size, (h, w), shift_size, strict=True))
    y = torch.empty_like(x)
    for i in range(0, h, down):
        for j in range(0, w, across):
            rows, columns = torch.arange(i, i + down) + up, torch.arange(j, j + across) + left
            part = (rows >= h)[:, None] * 2 + (columns >= w)
            rows, columns = (rows % h)[:, None], columns % w
            q, k, v = functional.linear(x[:, rows, columns].flatten(1, 2), qkv_weight, qkv_bias).chunk(3, -1)
            q, k, v = (each.unflatten(-1, (num_heads, width)).transpose(1, 2) for each in (q, k, v))
            part = part.flatten()
            scores = q @ k.transpose(-1, -2) * width**-0.5 + relative_position_bias
            scores = scores - 100.0 * (part[:, None] != part)
            z = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            y[:, rows, columns] = functional.linear(z, proj_weight, proj_bias).unflatten(1, (down, across))
    return y


def _patch_merging_pad(x):
    x = functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
    parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
    return torch.cat(parts, -1)


for _function in (shifted_window_attention, _patch_merging_pad):
    _function.__module__ = "torchvision.models.swin_transformer"
torch.fx.wrap("shifted_window_attention")
torch.fx.wrap("_patch_merging_pad")


class Windows(nn.Module):
    def __init__(self, window, shift, bias=True, c=8, heads=2):
        super().__init__()
        self.qkv, self.proj = nn.Linear(c, 3 * c, bias), nn.Linear(c, c, bias)
        self.near = nn.Parameter(torch.randn(1, heads, window[0] * window[1], window[0] * window[1]))
        self.words = {"window_size": list(window), "num_heads": heads, "shift_size": list(shift)}

    def forward(self, x):
        bias = {"qkv_bias": self.qkv.bias, "proj_bias": self.proj.bias, "training": self.training}
        return x + shifted_window_attention(x, self.qkv.weight, self.proj.weight, self.near, **self.words, **bias)


class Merging(nn.Module):
    def forward(self, x):
        return _patch_merging_pad(x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("window", "shift"), [((2, 3), (1, 2)), ((2, 3), (0, 0)), ((4, 3), (2, 1)), ((2, 6), (1, 3))])
@torch.no_grad()
def test_windows(window, shift, bias):
    """Shifts in both dimensions, in none, and in those that have more windows than one."""
    torch.manual_seed(0)
    module = nn.Sequential(Windows(window, shift, bias), Merging()).eval()
    fused = nbt.fuse(module, x := torch.randn(2, 4, 6, 8))
    assert not any(isinstance(node.layer, layers.Call) for node in fused.network._graph.nodes)
    for images in (x, torch.randn(3, 4, 6, 8), x[:1]):
        for _ in range(2):
            torch.testing.assert_close(fused(images), module(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("module", [Windows((3, 3), (1, 1)), Merging()])
@torch.no_grad()
def test_what_is_padded_is_called(module):
    module.eval()
    fused = nbt.fuse(module, x := torch.randn(2, 4, 5, 8))
    assert any(isinstance(node.layer, layers.Call) for node in fused.network._graph.nodes)
    with numbaprims.config(device="reference"):
        torch.testing.assert_close(fused(x), module(x))


@torch.no_grad()
def test_torchvisions_own():
    # RuntimeError: of another torch
    swin = pytest.importorskip("torchvision.models.swin_transformer", exc_type=(ImportError, RuntimeError))
    assert all(hasattr(swin, name) for _, name in FUNCTIONS)
    block = swin.ShiftedWindowAttention(8, [2, 3], [1, 1], 2).eval()
    fused = nbt.fuse(block, x := torch.randn(2, 4, 6, 8))
    assert not any(isinstance(node.layer, layers.Call) for node in fused.network._graph.nodes)
    torch.testing.assert_close(fused(x), block(x), rtol=1e-4, atol=1e-5)
