"""`torch.compile` by `frontends.torch.backend`: models, their inputs and sizes."""

import threading

import pytest

torch = pytest.importorskip("torch")

from torch_compile_cases import Given, compiled, fresh, kinds, same  # noqa: E402, F401

from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.frontends.torch import compiler  # noqa: E402
from numbaprims.frontends.torch.fuse_trace import same_numbers  # noqa: E402
from numbaprims.fusion import layers  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


def test_torch_finds_it_by_name():
    assert "numbaprims" in torch._dynamo.list_backends(())
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    x = torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(net, backend="numbaprims")(x), net(x))


def test_convolutions():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=(2, 1), padding=1, groups=2), nn.Hardswish(inplace=True),
        nn.GroupNorm(2, 8), nn.Dropout(0.3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.LeakyReLU(0.3),
    ).eval()  # fmt: skip
    net[1].running_mean.normal_()
    _, network = same(net, torch.randn(2, 3, 12, 10))
    assert len(network._fused.items) < 9 and len(network._segments) == 1
    _, network = same(nn.Sequential(nn.Conv1d(2, 3, 3, dilation=2), nn.ELU(0.5)).eval(), torch.randn(1, 2, 9))
    assert kinds(network).count(layers.Conv) == 1


def rotated(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


class Norm(nn.Module):
    """A norm of root mean squares as models write it out, that computes in float32."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x):
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Decoder(nn.Module):
    """A block of a language model: positions by rotations, groups of queries, gates."""

    def __init__(self, size=32, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, width = heads, groups, size // heads
        self.embed = nn.Embedding(50, size)
        self.q, self.k, self.v = (nn.Linear(size, each * width, bias=False) for each in (heads, groups, groups))
        self.o, self.gate, self.up = (nn.Linear(*each, bias=False) for each in ((size, size), (size, 48), (size, 48)))
        self.down, self.first, self.second = nn.Linear(48, size, bias=False), Norm(size), Norm(size)
        self.register_buffer("speed", 1.0 / 100 ** (torch.arange(0, width, 2) / width))
        self.eval()

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        n, length, size = x.shape
        angles = torch.arange(length)[None, :, None].float() * self.speed
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        y = self.first(x)
        q, k, v = (
            each(y).view(n, length, heads, -1).transpose(1, 2)
            for each, heads in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups))
        )
        q, k = (each * cos + rotated(each) * sin for each in (q, k))
        k, v = (
            each[:, :, None].expand(n, self.groups, 2, length, -1).reshape(n, self.heads, length, -1) for each in (k, v)
        )
        causal = (torch.arange(length)[:, None] >= torch.arange(length)).expand(n, 1, length, length)
        if mask is not None:
            causal = causal & mask[:, None, None, :].to(torch.bool)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        x = x + self.o(attended.transpose(1, 2).reshape(n, length, size))
        y = self.second(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return x, x[:, -1].softmax(-1, dtype=torch.float32)


@pytest.mark.parametrize("images", [1, 2])
def test_a_language_model(images):
    net, ids = Decoder(), torch.randint(50, (images, 9))
    _, network = same(net, ids)
    found = kinds(network)
    assert found.count(layers.RMSNorm) == 2 and found.count(layers.Concat) == 2
    [attention] = [node.layer for node in network._graph.nodes if isinstance(node.layer, layers.Attention)]
    assert attention.causal and attention.mask is None and len(network._segments) == 1


def test_masks_of_each_call():
    net, ids = Decoder(), torch.randint(50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.long)
    made, network = same(net, ids, mask=mask)
    assert kinds(network).count(layers.MaskedAttention) == 1 and kinds(network).count(layers.Given) == 1
    fast, _ = compiled(net)
    for k in (7, 4, 1):
        mask[1, k:] = 0
        torch.testing.assert_close(fast(ids, mask=mask), net(ids, mask=mask), rtol=1e-4, atol=1e-5)


def test_bfloat16():
    net = Given(lambda m, x: m.two(m.one(x)), one=Norm(16).bfloat16(), two=Norm(16).bfloat16())
    _, network = same(net, torch.rand(2, 3, 16).bfloat16())
    assert kinds(network)[1:] == [layers.RMSNorm] * 2 and network.dtype == "bfloat16"


def test_the_same_numbers_of_two_bytes():
    """Up to what many layers round, which is much of single numbers near 0."""
    y = torch.zeros(1000).bfloat16()
    y[:50] = torch.randn(50)
    x, odd = y.clone(), y.clone()
    x[60] += 0.02
    odd[70] = torch.inf
    far = torch.where(torch.arange(1000) == 60, 5.0, y.float()).bfloat16()
    assert same_numbers(x, y) and same_numbers(y, y) and same_numbers(odd, odd)
    assert not any(
        same_numbers(each, y) for each in (1.2 * y, far, odd, torch.full_like(y, torch.nan), y[1:], y.float())
    )
    assert not same_numbers(odd, torch.where(odd.isinf(), -torch.inf, odd.float()).bfloat16())


def test_inputs_that_are_read_late():
    """Floats of another type than the batch, of which something is computed before it is asked for."""

    def forward(m, x, places):
        angles = places[:, :, None].float() * m.speed
        y = m.linear(x)
        return y * torch.cat((angles, angles), -1).cos().to(torch.bfloat16) + y

    net = Given(forward, linear=nn.Linear(8, 8).bfloat16(), speed=nn.Parameter(torch.rand(4)))
    same(net, torch.randn(2, 5, 8).bfloat16(), torch.arange(10).view(2, 5), calls=["cos"])


def test_products_of_rows_and_gelu_written_out():
    """As of GPT-2: matrices the other way round, of all rows of a batch."""

    def forward(m, x):
        y = torch.addmm(m.bias, x.view(-1, x.size(-1)), m.weight).view(*x.shape[:-1], 12)
        y = 0.5 * y * (1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0))))
        return functional.linear(y.reshape(-1, 12), m.weight).reshape(2, 5, 8)

    net = Given(forward, weight=nn.Parameter(torch.randn(8, 12)), bias=nn.Parameter(torch.randn(12)))
    _, network = same(net, torch.randn(2, 5, 8))
    found = [each for each in kinds(network) if each in (layers.Linear, layers.Activation, layers.Scale)]
    assert found == [layers.Linear, layers.Activation, layers.Linear]
    [gelu] = [node.layer for node in network._graph.nodes if isinstance(node.layer, layers.Activation)]
    assert gelu.parameters == {"approximate": "tanh"}


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoders(norm_first):
    layer = nn.TransformerEncoderLayer(16, 2, 24, activation="gelu", batch_first=True, norm_first=norm_first)
    _, network = same(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 5, 16))
    assert kinds(network).count(layers.SelfAttention) == 2 and kinds(network).count(layers.LayerNorm) == 4


@pytest.mark.parametrize("masked", [False, True])
def test_multihead_attention(masked):
    mask = torch.ones(5, 5).triu(1).bool() if masked else None
    attend = nn.MultiheadAttention(16, 2, batch_first=True)
    net = Given(lambda m, x: m.attend(*[x + 1] * 3, need_weights=False, attn_mask=mask)[0] * 2, attend=attend)
    _, network = same(net, torch.randn(2, 5, 16))
    assert kinds(network).count(layers.SelfAttention) == 1
    other = Given(lambda m, x, y: m.attend(x, y, y, need_weights=False)[0] * 2, attend=attend)
    same(other, torch.randn(2, 5, 16), torch.randn(2, 6, 16), calls=["multi_head_attention_forward"])


@pytest.mark.parametrize("last", [False, True])
def test_results_lie_as_torchs_do(last):
    """Who asks them for views may: of attention they are turned, and of images as these are."""

    def forward(m, x):
        y = m.conv(x)
        z = y.flatten(2).transpose(1, 2).unflatten(-1, (2, 4)).transpose(1, 2)
        return y, functional.scaled_dot_product_attention(z, z, z), y.mean((2, 3)), z[:1] * 0, y.mean()

    net, x = Given(forward, conv=nn.Conv2d(3, 8, 3)), torch.randn(2, 3, 6, 5)
    x = x.to(memory_format=torch.channels_last) if last else x
    fast, made = compiled(net)
    for _ in range(3):
        for y, want in zip(fast(x), net(x), strict=True):
            torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-5)
            assert y.stride() == want.stride()
    assert not made[0].why and made[0]._kinds


def test_sizes_that_vary():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).eval()
    made = []

    def backend(graph, inputs):
        made.append(nbt.backend(graph, inputs))
        return made[-1]

    fast = torch.compile(net, backend=backend, dynamic=True)
    for size in (2, 3, 4, 3, 2, *range(5, 20), *range(5, 20)):
        x = torch.randn(size, 7, 4)
        torch.testing.assert_close(fast(x), net(x))
    [graph] = made
    assert not graph._kinds and graph._seen.most_common(1)[0][1] < compiler.OFTEN
    for size in (2, 3) * compiler.OFTEN:
        torch.testing.assert_close(fast(torch.ones(size, 7, 4)), net(torch.ones(size, 7, 4)))
    assert len(graph._kinds) == 2, "what comes often is planned"


def test_keys_that_are_repeated_along_the_length():
    """Which look like groups of keys."""

    def forward(m, x):
        q = m.linear(x)
        k = q[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 2, 6, 4)
        return functional.scaled_dot_product_attention(q, k, k, attn_mask=m.mask)

    net = Given(forward, linear=nn.Linear(4, 4), mask=nn.Parameter(torch.randn(3, 6)))
    same(net, torch.randn(2, 2, 3, 4))


def test_sizes_that_vary_in_views():
    """Lengths of a text are numbers among the inputs of a graph, and what is computed of them."""

    def forward(m, ids):
        x = m.embed(ids)
        n, length, size = x.shape
        y = m.linear(x).view(n, length, 2, size // 2).transpose(1, 2)
        y = functional.scaled_dot_product_attention(y, y, y, is_causal=True).transpose(1, 2).reshape(n, length, size)
        return (y + m.positions[:length]).view(-1, size), torch.arange(length * 2), x[:, length // 2 :]

    parts = {"embed": nn.Embedding(20, 8), "linear": nn.Linear(8, 8), "positions": nn.Parameter(torch.randn(30, 8))}
    net, made = Given(forward, **parts), []
    fast = torch.compile(net, backend=lambda *given: made.append(nbt.backend(*given)) or made[-1], dynamic=True)
    for length in (5, 7, 6) * 4:
        ids = torch.randint(20, (2, length))
        for y, want in zip(fast(ids), net(ids), strict=True):
            torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-5)
        fast(ids)[1].zero_()  # what is computed once is not the plan's
    assert not made[-1].why and len(made[-1]._kinds) == 3


def test_inference_mode_and_threads():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)).eval()
    fast, _ = compiled(net)
    with torch.inference_mode():
        x = torch.randn(1, 2, 6, 6)
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x))
    images = [torch.randn(1, 2, 6, 6) for _ in range(8)]
    fast(images[0])
    found = [None] * 8

    def work(k):
        with torch.no_grad():
            found[k] = fast(images[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for y, x in zip(found, images, strict=True):
        torch.testing.assert_close(y, net(x))


def test_options():
    net = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4)).eval()
    fast = torch.compile(net, backend="numbaprims", options={"exact": True})
    x = torch.randn(1, 2, 3, 3)
    torch.testing.assert_close(fast(x), net(x))
    _, made = compiled(net, options={"exact": True})
    assert made == []
    with pytest.raises(TypeError, match="options has 'speed'; it takes exact, limit, strategy"):
        nbt.backend(torch.fx.symbolic_trace(net), [x], options={"speed": 9})


def test_graphs_that_break():
    def forward(m, x):
        y = m.first(x)
        torch._dynamo.graph_break()
        return m.second(y).relu() + y, y[:, None]

    same(Given(forward, first=nn.Linear(4, 4), second=nn.Linear(4, 4)), torch.randn(2, 4), graphs=2)
