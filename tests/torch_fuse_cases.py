"""Modules of parts and of functions, and what a fused one has to be, for the tests of `frontends.torch.fuse`."""

import torch

from numbaprims.frontends import torch as nbt
from numbaprims.fusion import layers

nn = torch.nn


class Made(nn.Module):
    """A module of parts and of a function of itself and x."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)
        for each in self.modules():
            for tensor in (*each.parameters(recurse=False), *each.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data.uniform_(0.3, 1.0) if tensor.ndim == 1 else tensor.data.normal_(0, 0.3)
        self.eval()

    def forward(self, x):
        return self.function(self, x)


def agrees(module, x, *, whole=False):
    """A fused network that computes what the module does, also of other numbers of images; `whole`: as one call."""
    fused = nbt.fuse(module, x)
    with torch.no_grad():
        for images in (x, torch.randn(x.shape[0] + 1, *x.shape[1:]), x[:1]):
            kept = images.clone()
            torch.testing.assert_close(fused(images), module(images.clone()), rtol=1e-4, atol=1e-5)
            assert torch.equal(images, kept)
    assert whole == (fused.network._fused.alone and isinstance(fused.network._fused.items[0].layer, layers.Call))
    return fused


def called(fused):
    """What is called as it is, in words."""
    found = [node.layer.function for node in fused.network._graph.nodes if isinstance(node.layer, layers.Call)]
    return [getattr(each, "__name__", None) or repr(each) for each in found]
