"""`torch.compile` by `frontends.torch.backend`: what is written to, what changes, and what torch runs itself."""

import pytest

torch = pytest.importorskip("torch")

from torch_compile_cases import Given, compiled, fresh, kinds, same  # noqa: E402, F401

from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.frontends.torch import compiler  # noqa: E402
from numbaprims.fusion import layers  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


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
        late = m.linear.bias * 2.0
        late[1:] = 7.0
        late.mul_(other)
        return m.linear(x) + mask * other + late

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


def test_parameters_that_are_part_of_a_graph():
    """As torch 2.4 has them."""
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3)).eval()
    x = torch.randn(2, 2, 2, 2)

    class Tuple(nn.Module):
        def forward(self, x):
            return (self.net(x),)

    whole = Tuple()
    whole.net = net
    run = nbt.backend(torch.fx.symbolic_trace(whole), [x])
    torch.testing.assert_close(run(x)[0], net(x))
    for each in (net[0].weight, net[1].running_mean, net[3].bias):
        each.add_(0.5)
        torch.testing.assert_close(run(x)[0], net(x))
    assert not run.why


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
    monkeypatch.setattr(compiler._Compiled, "may_write", lambda self, node: False)
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


def test_writes_that_nobody_reads():
    """The last of what a graph does."""

    def forward(m, x, cache, length):
        y = m.linear(x)
        cache.index_copy_(1, length, y)
        return y * 2

    net, x = Given(forward, linear=nn.Linear(4, 4)), torch.randn(2, 1, 4)
    fast, made = compiled(net)
    for at in range(3):
        ours, torchs, length = torch.zeros(2, 5, 4), torch.zeros(2, 5, 4), torch.tensor([at])
        torch.testing.assert_close(fast(x, ours, length), net(x, torchs, length), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)
        assert torchs.any()
    assert not made[0].why


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


def adds_to_a_parameter(m, x):
    bias = m.linear.bias
    bias += 1.0
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
    "a parameter is added to": (adds_to_a_parameter, "writes to a parameter"),
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
