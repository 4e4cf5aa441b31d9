"""Tensors whose first dimension is images and rows of them, and elements that are copied by their numbers."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402
from torch_compile_cases import compiled, fresh  # noqa: E402, F401
from torch_fuse_cases import Made, agrees, called  # noqa: E402

from numbaprims.fusion import layers  # noqa: E402

nn = torch.nn


def kinds(fused):
    return [type(node.layer) for node in fused.network._graph.nodes]


def of_tokens(self, x):
    """Layers of all tokens of a batch, one below the other."""
    y = self.norm(x.reshape(-1, x.size(-1)))
    y = functional.relu(functional.linear(y, self.weight), inplace=True) + 0.5
    y = torch.addmm(self.bias, y, self.matrix) * torch.sigmoid(y[:, :8])
    return y.reshape(x.size(0), -1, 8) + x


def of_windows(self, x):
    """Attention within windows that are shifted, as a Swin transformer's."""
    n, h, w, c = x.shape
    y = functional.pad(x, (0, 0, 0, 0, 0, 0))
    y = torch.roll(y, (-1, -1), (1, 2)).view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
    q, k, v = self.qkv(y).reshape(y.size(0), 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
    scores = (q * 0.5) @ k.transpose(-2, -1) + self.position
    y = (functional.softmax(scores, -1) @ v).transpose(1, 2).reshape(-1, 4, c)
    y = self.proj(y).view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
    return torch.roll(y, (1, 1), (1, 2)) + x


def of_heads(self, x):
    """Products of all heads of a batch."""
    q, k, v = (each.view(x.size(0), -1, 2, 4).transpose(1, 2).reshape(-1, x.size(1), 4) for each in (x, x * 2, x + 1))
    scores = functional.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
    y = torch.cat((torch.bmm(scores, v), -q), dim=2) + torch.cat((q, q), 2)
    return y.view(x.size(0), 2, -1, 8).transpose(1, 2).flatten(2)


def of_attention(self, x):
    """The same of one head, and of groups of tokens with heads."""
    y = x.view(-1, 3, 8)
    y = functional.scaled_dot_product_attention(y, y, y)
    z = x.view(-1, 3, 2, 4).transpose(1, 2)
    z = functional.scaled_dot_product_attention(z, z, z, is_causal=True).transpose(1, 2)
    return y.reshape(x.shape) + z.reshape(x.shape)


FORWARDS = {
    "tokens": (of_tokens, (2, 6, 8)), "windows": (of_windows, (2, 4, 6, 8)), "heads": (of_heads, (2, 6, 8)),
    "attention": (of_attention, (2, 6, 8)),
}  # fmt: skip


@pytest.mark.parametrize("by_compile", [False, True])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("what", FORWARDS)
def test_rows(what, images, by_compile):
    forward, shape = FORWARDS[what]
    parts = {
        "norm": nn.LayerNorm(8), "weight": nn.Parameter(torch.randn(12, 8)), "bias": nn.Parameter(torch.randn(8)),
        "matrix": nn.Parameter(torch.randn(12, 8)), "qkv": nn.Linear(8, 24), "proj": nn.Linear(8, 8),
        "position": nn.Parameter(torch.randn(2, 4, 4)),
    }  # fmt: skip
    net, x = Made(forward, **parts), torch.randn(images, *shape[1:])
    if not by_compile:
        assert called(agrees(net, x)) == []
        return
    fast, made = compiled(net)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    [(parts, _)] = made[0]._kinds.values()
    assert len(parts.network._segments) == 1


def test_results_of_rows():
    net = Made(lambda m, x: (m.linear(x.view(-1, 4)), x.view(-1, 4)), linear=nn.Linear(4, 5))
    fast, made = compiled(net)
    with torch.no_grad():
        x = torch.randn(2, 3, 4)
        for y, want in zip(fast(x) + fast(x), net(x) * 2, strict=True):
            torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-5)
    assert not made[0].why
    alone = Made(lambda m, x: m.linear(x.view(-1, 4)), linear=nn.Linear(4, 5))
    agrees(alone, torch.randn(2, 3, 4), whole=True)


COPIES = {
    "turned": (lambda x: x.flip(1), (2, 3, 8), True),
    "some": (lambda x: x[:, [2, 0, 2]], (2, 3, 8), True),
    "rolled": (lambda x: x.roll(1, dims=2), (2, 3, 4, 4), True),
    "some of a view": (lambda x: x[:, 1:].index_select(1, torch.tensor([1, 0])), (2, 3, 8), True),
    "repeated": (lambda x: x.repeat_interleave(2, dim=1), (2, 3, 8), True),
    "one by one": (lambda x: x.flip(2), (2, 3, 8), False),
    "padded": (lambda x: functional.pad(x, (0, 0, 1, 0)), (2, 3, 8), False),
    "of another run": (lambda x: x.flatten(1)[:, torch.arange(4, 20).view(2, 8)], (2, 3, 8), False),
    "of another image": (lambda x: x.roll(1, dims=0), (2, 3, 8), False),
}


@pytest.mark.parametrize("what", COPIES)
def test_elements_by_their_numbers(what):
    function, shape, known = COPIES[what]
    net = Made(lambda m, x: function(m.linear(x)) * 2, linear=nn.Linear(shape[-1], shape[-1]))
    fused = agrees(net, torch.randn(shape))
    assert (layers.Gather in kinds(fused)) == known == (called(fused) == [])


def test_what_is_put_around_one_image():
    """Where functions are tried on one image, whose first element has a number of its own."""
    net = Made(lambda m, x: functional.pad(m.linear(x), (0, 0, 1, 2)), linear=nn.Linear(8, 8))
    fast, made = compiled(net)
    with torch.no_grad():
        x = torch.randn(1, 3, 8)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert not made[0].why


def test_masks_of_all_rows():
    """A mask of each window, once for each image, is one of the windows."""

    def forward(self, x):
        y, mask = self.linear(x).view(-1, 1, 3, 8), self.mask.repeat(len(x), 1, 1, 1)
        return functional.scaled_dot_product_attention(y, y, y, attn_mask=mask).view(x.shape) + x

    net = Made(forward, linear=nn.Linear(8, 8), mask=nn.Parameter(torch.randn(2, 1, 3, 3)))
    fast, made = compiled(net)
    with torch.no_grad():
        x = torch.randn(3, 6, 8)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    [(parts, _)] = made[0]._kinds.values()
    assert not made[0].why and len(parts.network._segments) == 1


def test_what_reads_along_the_rows_is_called():
    """A softmax over all rows, and norms whose first dimension is images alone."""

    def forward(self, x):
        y = x.reshape(-1, 4)
        y = functional.softmax(self.linear(y), dim=1) + functional.batch_norm(y, self.mean, self.mean + 1)
        return (y.cumsum(0) - y.cumsum(0).roll(1, 0)).view(-1, 3, 4)[:, 1:]

    fused = agrees(Made(forward, linear=nn.Linear(4, 4), mean=nn.Parameter(torch.rand(4))), torch.randn(2, 3, 4))
    assert called(fused)


def test_products_with_numbers_of_each_call_are_no_copies():
    """Of one image, whose number is 1 where functions are tried."""

    class Scaled(nn.Linear):
        def forward(self, x, number):
            return number * super().forward(x)

    net = Scaled(4, 4).eval()
    fast, made = compiled(net)
    with torch.no_grad():
        x = torch.randn(1, 4)
        for number in (2.0, 3.0, 5.0):
            torch.testing.assert_close(fast(x, torch.tensor(number)), net(x, torch.tensor(number)))
    assert not made[0].why
