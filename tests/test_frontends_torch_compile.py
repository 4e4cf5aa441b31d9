"""`torch.compile` by `frontends.torch.backend`."""

import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.frontends.torch import compiler  # noqa: E402
from numbaprims.frontends.torch.fuse_trace import same_numbers  # noqa: E402
from numbaprims.fusion import layers  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # that a graph runs by torch
        yield


def compiled(module, **words):
    """A module as torch.compile makes it, and the graphs that it has."""
    made = []
    torch._dynamo.reset()  # or sizes of another module of the same code vary

    def backend(graph, inputs):
        made.append(nbt.backend(graph, inputs, **words))
        return made[-1]

    return torch.compile(module, backend=backend), made


def same(module, *inputs, calls=(), graphs=1, **given):
    """What torch gives, whichever time it is called, by one plan a graph without functions that are called."""
    fast, made = compiled(module)
    for _ in range(3):
        found, want = fast(*inputs, **given), module(*inputs, **given)
        for y, of in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, want)), strict=True):
            near = 1e-5 if y.dtype == torch.float32 else 2e-2
            torch.testing.assert_close(y, of, rtol=10 * near, atol=near)
    assert len(made) == graphs and not any(each.why for each in made)
    plans = [parts for each in made for parts, _ in each._kinds.values()]
    found = [repr(node.layer.function) for each in plans for node in each.network._graph.nodes if called(node)]
    assert len(found) == len(calls) and all(word in text for word, text in zip(calls, found, strict=True)), found
    return made[0], plans[0].network


def called(node):
    return isinstance(node.layer, layers.Call)


def kinds(network):
    return [type(node.layer) for node in network._graph.nodes]


class Given(nn.Module):
    """A function of tensors with parameters."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)
        self.eval()

    def forward(self, *inputs, **words):
        return self.function(self, *inputs, **words)


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
    other = Given(lambda m, x, y: m.attend(x, y, y, need_weights=False)[0], attend=attend)
    same(other, torch.randn(2, 5, 16), torch.randn(2, 6, 16), calls=["multi_head_attention_forward"])


def test_inputs_before_the_first_batch_of_floats():
    """Numbers of words shifted in place, as of BART, and a mask of numbers."""

    def forward(m, ids, lengths):
        shifted = ids.new_zeros(ids.shape)
        shifted[:, 1:] = ids[:, :-1].clone()
        shifted[:, 0] = 3
        keep = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
        return m.linear(m.embed(shifted)) * 0.5 + m.embed(ids), keep, shifted, lengths

    net = Given(forward, embed=nn.Embedding(20, 8), linear=nn.Linear(8, 8))
    made, network = same(net, torch.randint(20, (2, 5)), torch.tensor([3, 5]))
    for k in range(3):
        fast, _ = compiled(net)
        inputs = torch.randint(20, (2, 5)), torch.tensor([k, 2])
        torch.testing.assert_close(fast(*inputs), net(*inputs), rtol=1e-4, atol=1e-5)


def test_constants_are_written_before_they_are_read():
    def forward(m, x):
        mask = x.new_zeros((4, 4))
        mask[1:3, 1:] = 2.0
        mask += 1.0
        other = torch.zeros(4)
        part = other[1:]
        part += 5.0
        return m.linear(x) + mask * other

    same(Given(forward, linear=nn.Linear(4, 4)), torch.randn(3, 4, 4))


def test_parameters_that_change():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    fast, [*_] = compiled(net)
    x = torch.randn(2, 4)
    fast(x)
    net[0].weight.mul_(2)
    torch.testing.assert_close(fast(x), net(x))
    net[2].bias.data = torch.ones(3)
    torch.testing.assert_close(fast(x), net(x))
    net.load_state_dict({name: torch.randn_like(value) for name, value in net.state_dict().items()})
    torch.testing.assert_close(fast(x), net(x))


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


class Cache(nn.Module):
    """A step of a language model: keys and values of one more word are written beside those before."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv = nn.Embedding(20, 8), nn.Linear(8, 16)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.eval()

    def forward(self, ids, keys, values, length):
        q, k, v = self.qkv(self.embed(ids)).split((8, 4, 4), -1)
        q, k, v = (each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in (q, k, v))
        keys.index_copy_(2, length, k)
        values.index_copy_(2, length, v)
        open_ones = torch.arange(keys.shape[2]) <= length[:, None]
        length.add_(1)
        self.steps += 1
        k, v = (each[:, :, None].expand(-1, -1, 2, -1, -1).reshape(len(ids), 2, -1, 4) for each in (keys, values))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=open_ones[None, None]) * self.steps


def test_caches_that_are_written():
    net = Cache()
    results = []
    for run in (net, compiled(net)[0]):
        net.steps.zero_()
        keys, values, length = torch.zeros(2, 1, 6, 4), torch.zeros(2, 1, 6, 4), torch.zeros(1, dtype=torch.long)
        found = [run(torch.tensor([[k], [k + 3]]), keys, values, length).clone() for k in range(5)]
        results.append((torch.stack(found), keys, values, length, net.steps.clone()))
    for ours, want in zip(*results[::-1], strict=True):
        torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-5)


def test_a_write_that_is_lost_is_found(monkeypatch):
    monkeypatch.setattr(compiler._Compiled, "_may_write", lambda self, node: False)
    net = Given(lambda m, x: m.linear(x.add_(1.0)), linear=nn.Linear(4, 4))
    ours, torchs = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    with pytest.warns(UserWarning, match="other numbers than torch"):
        torch.testing.assert_close(compiled(net)[0](ours), net(torchs))
    assert torch.equal(ours, torchs)


def test_what_is_written_out_and_written_to():
    """A gelu of which the first factor was changed behind the second's, and norms with weights of rows."""

    def forward(m, x):
        y = m.linear(x)
        gate = 1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0)))
        y.mul_(2.0)
        z = 0.5 * y * gate
        return m.weight * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6))

    net = Given(forward, linear=nn.Linear(4, 4), weight=nn.Parameter(torch.rand(3, 1)))
    fast, made = compiled(net)
    for _ in range(2):
        x = torch.randn(2, 3, 4)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert not made[0].why


def test_keys_that_are_repeated_along_the_length():
    """Which look like groups of keys."""

    def forward(m, x):
        q = m.linear(x)
        k = q[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 2, 6, 4)
        return functional.scaled_dot_product_attention(q, k, k, attn_mask=m.mask)

    net = Given(forward, linear=nn.Linear(4, 4), mask=nn.Parameter(torch.randn(3, 6)))
    same(net, torch.randn(2, 2, 3, 4))


def test_groups_of_keys_are_read_where_they_lie():
    fast, made = compiled(Cache())
    fast(torch.zeros(1, 1).long(), torch.zeros(1, 1, 6, 4), torch.zeros(1, 1, 6, 4), torch.zeros(1).long())
    [(parts, _)] = made[0]._kinds.values()
    assert kinds(parts.network).count(layers.MaskedAttention) == 1 and layers.Reshape not in kinds(parts.network)


def test_inputs_that_are_written():
    def forward(m, x):
        x.add_(1.0)
        y = m.linear(x)
        x.mul_(y)
        return y + x

    net = Given(forward, linear=nn.Linear(4, 4))
    fast, made = compiled(net)
    ours, torchs = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    for _ in range(3):
        torch.testing.assert_close(fast(ours), net(torchs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)
    assert not made[0].why


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


def test_parameters_that_change_all_the_time():
    net = nn.Linear(3, 2).eval()
    fast, made = compiled(net)
    x = torch.randn(2, 3)
    for _ in range(compiler.MOST_KINDS):
        torch.testing.assert_close(fast(x), net(x))
        net.weight.mul_(1.1)
    with pytest.warns(UserWarning, match="its parameters change all the time"):
        torch.testing.assert_close(fast(x), net(x))
    net.weight.mul_(1.1)
    torch.testing.assert_close(fast(x), net(x))
    used, made = compiled(net)
    for _ in range(compiler.MOST_KINDS + 3):  # as between the epochs of a training
        for _ in range(compiler._WORTH + 1):
            found = used(x)
        torch.testing.assert_close(found, net(x))
        net.weight.mul_(0.9)
    assert not made[0].why


def writes_to_a_mask(m, x, mask):
    opened = mask[:, None, None]
    attended = functional.scaled_dot_product_attention(x, x, x, attn_mask=opened)
    mask.logical_not_()
    return functional.scaled_dot_product_attention(attended, x, x, attn_mask=opened)


def writes_to_one_of_two(m, x, other):
    other.add_(1.0)
    return m.linear(x) + other


def writes_to_a_parameter(m, x):
    m.linear.bias.add_(1.0)
    return m.linear(x)


def draws(m, x):
    return m.linear(x) + torch.rand(4)


def casts(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return m.linear(x)


def of_integers(m, x):
    return x.long() + 1


TORCHS = {
    "a parameter is written": (writes_to_a_parameter, "writes to a parameter"),
    "random numbers": (draws, "draws random numbers"),
    "autocast inside": (casts, "autocast is on in it"),
    "functions of functions": (lambda m, x: torch.func.vmap(m.linear)(x), "functions of torch.func"),
    "no layers": (of_integers, "no layers"),
}


@pytest.mark.parametrize("what", TORCHS)
def test_what_torch_runs(what):
    forward, why = TORCHS[what]
    net = Given(forward, linear=nn.Linear(4, 4))
    fast, made = compiled(net)
    x = torch.randn(2, 3, 4)
    bias = net.linear.bias.clone()
    with pytest.warns(UserWarning, match=rf"torch runs a graph of \d+ nodes itself: .*{why}"):
        torch.manual_seed(5)
        first = fast(x.clone())
    torch.manual_seed(6)
    second = fast(x.clone())  # without a warning: it is known
    torch.manual_seed(5)
    net.linear.bias.copy_(bias)
    torch.testing.assert_close(first, net(x.clone()))
    torch.manual_seed(6)
    torch.testing.assert_close(second, net(x.clone()))
    assert made[0].why


def test_masks_that_are_written_behind_what_reads_them():
    def forward(m, x, mask):
        y = functional.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, None])
        mask[:, 1] = False
        return m.linear(functional.scaled_dot_product_attention(y, x, x, attn_mask=mask[:, None, None]))

    net, x = Given(forward, linear=nn.Linear(4, 4)), torch.randn(2, 1, 3, 4)
    fast, made = compiled(net)
    for _ in range(3):
        ours, torchs = torch.ones(2, 3).bool(), torch.ones(2, 3).bool()
        torch.testing.assert_close(fast(x, ours), net(x, torchs), rtol=1e-4, atol=1e-5)
        assert torch.equal(ours, torchs)
    assert not made[0].why


def test_writes_that_are_not_followed():
    x, mask, shared = torch.randn(2, 1, 3, 4), torch.ones(2, 3).bool(), torch.randn(4, 4)
    for forward, given, why in [
        (writes_to_a_mask, (x, mask), "is written to while the network reads it"),
        (writes_to_one_of_two, (shared[:3], shared[1:]), "several inputs that may share"),
    ]:
        net = Given(forward, linear=nn.Linear(4, 4))
        fast, made = compiled(net)
        given, others = given, [each.clone() for each in given]
        if forward is writes_to_one_of_two:
            whole = shared.clone()
            others = whole[:3], whole[1:]
        with pytest.warns(UserWarning, match=why):
            first = fast(*given)
        torch.testing.assert_close(first, net(*others))
        torch.testing.assert_close(fast(*given), net(*others))
        torch.testing.assert_close(given[1], others[1])


def test_a_network_of_other_numbers_is_not_taken(monkeypatch):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    monkeypatch.setattr(compiler, "layer_of", lambda module, ndim: layers.Scale(1.01))
    monkeypatch.setattr(layers, "Linear", lambda weight, bias: layers.Scale(3.0))
    fast, _ = compiled(net)
    x = torch.randn(2, 4)
    with pytest.warns(UserWarning, match="other numbers than torch"):
        torch.testing.assert_close(fast(x), net(x))
    torch.testing.assert_close(fast(x), net(x))


def test_gradients_and_autocast_are_torchs():
    net = nn.Linear(4, 3)
    fast, made = compiled(net)
    x = torch.randn(2, 4)
    with pytest.warns(UserWarning, match="records gradients"), torch.enable_grad():
        fast(x).sum().backward()
    torch.testing.assert_close(net.weight.grad, x.sum(0).expand(3, 4))
    with pytest.warns(UserWarning, match="autocast is on"), torch.autocast("cpu", torch.bfloat16):
        assert fast(x).dtype == torch.bfloat16
    assert fast(x).dtype == torch.float32 and len(made) == 3


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
