"""Swin transformers by `numbaprims.frontends.torch.fuse`: functions that are named as torchvision's."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

import numbaprims  # noqa: E402
from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.frontends.torch.fuse_torchvision import FUNCTIONS  # noqa: E402
from numbaprims.fusion import layers  # noqa: E402

pytestmark = pytest.mark.cpu
nn = torch.nn


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
