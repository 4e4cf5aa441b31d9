"""`numbaprims.frontends.torch.fuse` of modules that are no sequences: their graphs, as torch.fx traces them."""

import importlib
import operator
import pathlib
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402
from torch_fuse_cases import Made, agrees, called  # noqa: E402

import numbaprims  # noqa: E402
from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.fusion import layers  # noqa: E402

pytestmark = pytest.mark.cpu
nn = torch.nn


@pytest.fixture(autouse=True)
def by_definition():
    torch.manual_seed(0)
    with numbaprims.config(device="reference"):
        yield


def residual(inplace):
    def forward(self, x):
        y = self.relu(self.norm(self.conv(x)))
        y = self.norm2(self.conv2(y))
        y += self.down(x) if self.down is not None else x
        return self.relu(y)

    return lambda c, k, stride=1: Made(
        forward, conv=nn.Conv2d(c, k, 3, stride, 1, bias=False), norm=nn.BatchNorm2d(k), relu=nn.ReLU(inplace),
        conv2=nn.Conv2d(k, k, 3, 1, 1, bias=False), norm2=nn.BatchNorm2d(k),
        down=nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k)) if stride > 1 else None,
    )  # fmt: skip


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_residual_network(inplace, replaced):
    block = residual(inplace)
    parts = {
        "first": nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(inplace), nn.MaxPool2d(3, 2, 1)),
        "blocks": nn.Sequential(block(4, 4), block(4, 8, 2)),
        "pool": nn.AdaptiveAvgPool2d((1, 1)), "last": nn.Linear(8, 5),
    }  # fmt: skip
    module = Made(lambda self, x: self.last(torch.flatten(self.pool(self.blocks(self.first(x))), 1)), **parts)
    if replaced:
        nbt.nn.replace(module)
    fused = agrees(module, torch.randn(2, 3, 17, 18))
    kinds = [type(item.layer).__name__ for item in fused.network._fused.items]
    assert called(fused) == [] and kinds.count("Conv") == 6 and "BatchNorm" not in kinds
    again = pickle.loads(pickle.dumps(fused))
    x = torch.randn(2, 3, 17, 18)
    with torch.no_grad():
        assert torch.equal(again(x), fused(x))


def test_functions():
    def forward(self, x):
        y = functional.relu(self.conv(x), inplace=True)
        y = functional.max_pool2d(y, 3, stride=1, padding=1)
        y = functional.avg_pool2d(y, 2, ceil_mode=True)
        y = functional.dropout(functional.dropout2d(y, 0.3, self.training), training=self.training)
        y = torch.sigmoid(y).add(functional.gelu(y))
        y = functional.adaptive_avg_pool2d(functional.relu6(y), 1)
        y = functional.rrelu(functional.leaky_relu(y.view(y.size(0), -1), 0.2), 0.1, 0.1)
        return functional.hardtanh(functional.elu(y, 0.5), -0.2, max_val=0.7)

    fused = agrees(Made(forward, conv=nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 9, 8))
    assert called(fused) == ["rrelu"]
    kinds = [node.layer.kind for node in fused.network._graph.nodes if isinstance(node.layer, layers.Activation)]
    assert kinds[-3:] == ["leaky_relu", "elu", "hard_tanh"]
    assert any(len(stack.layers) > 2 for stack in fused.network.stacks)


def test_branches_products_and_parts():
    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        y = torch.cat([self.left(a), self.right(b), x], 1)
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, -1, h, w) + self.shift

    parts = {
        "left": nn.Conv2d(2, 4, 1),
        "right": nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()),
        "gate": nn.Conv2d(10, 10, 1),
    }
    module = Made(forward, **parts, shift=nn.Parameter(torch.randn(10, 1, 1)))
    fused = agrees(module, torch.randn(2, 4, 5, 6))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert kinds.count(layers.Concat) == kinds.count(layers.Multiply) == 1
    assert called(fused) == ["mean"] and kinds.count(layers.View) == 3
    assert kinds.count(layers.Reshape) == kinds.count(layers.Bias) == 1


FLAT = {
    "flatten": lambda x: torch.flatten(x, 1),
    "method": lambda x: x.flatten(start_dim=1),
    "view": lambda x: x.view(x.size(0), -1),
    "shape": lambda x: x.reshape(x.shape[0], 24),
    "sizes": lambda x: x.reshape((x.size()[0], -1)),
    "what is left": lambda x: x.view(-1, 24),
    "two by two": lambda x: x.flatten(1, 2).flatten(1, 2),
}
NOT_FLAT = {"one image": lambda x: x.view(1, -1)}


@pytest.mark.parametrize("name", [*FLAT, *NOT_FLAT])
@torch.no_grad()
def test_flattening_for_any_number_of_images(name):
    flat = (FLAT | NOT_FLAT)[name]
    parts = {"conv": nn.Conv2d(3, 4, 2), "last": nn.Linear(24, 5)}
    module = Made(lambda self, x: self.last(flat(torch.relu(self.conv(x)))), **parts).eval()
    x = torch.randn(1, 3, 3, 4)
    fused = nbt.fuse(module, x)
    torch.testing.assert_close(fused(x), module(x))
    assert bool(called(fused)) == (name in NOT_FLAT)
    if name in FLAT:
        for x in torch.randn(3, 5, 3, 3, 4):  # other numbers of images than were traced
            torch.testing.assert_close(fused(x), module(x))


def test_what_is_flattened_shares_its_memory():
    """An activation in place behind it writes to what others read."""

    def forward(self, x):
        y = self.conv(x)
        z = torch.flatten(y, 1).relu_()
        return z.sum(1) + y.sum((1, 2, 3))

    module, x = Made(forward, conv=nn.Conv2d(3, 4, 2)).eval(), torch.randn(2, 3, 3, 4)
    with torch.no_grad():
        torch.testing.assert_close(nbt.fuse(module, x)(x), module(x))


def test_gates_and_what_is_not_known_between_calls_that_run_as_one():
    """Squeeze and excitation, and a function between parts that are one native call each from the second call on."""

    def forward(self, x):
        y = torch.relu(self.conv(x))
        y = y * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(y, 1)))
        z = torch.cat([y, y.flip(-1)], 1)
        return torch.tanh(self.last(z)) + y

    module = Made(forward, conv=nn.Conv2d(3, 8, 3), gate=nn.Conv2d(8, 8, 1), last=nn.Conv2d(16, 8, 1)).eval()
    x = torch.randn(2, 3, 9, 8)
    fused = agrees(module, x)
    first, unknown, last = fused.network._segments
    assert (first.joins, unknown.joins, last.joins) == (True, False, True) and called(fused) == ["flip"]
    with torch.no_grad():
        want = fused(x)
        for _ in range(3):
            assert torch.equal(fused(x), want)
        for shape in ((1, 3, 9, 8), (4, 3, 9, 8)) * 2:
            given = torch.randn(shape)
            torch.testing.assert_close(fused(given), module(given))
    for segment in (first, last):
        assert not segment.joined.why and len(segment.joined._kinds) >= 3


def test_a_transformer_and_constants():
    def forward(self, x):
        x = x + self.table[torch.arange(5)].mean(0)
        y = self.norm(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.norm(x))

    module = Made(
        forward, table=nn.Parameter(torch.randn(7, 5, 8)), norm=nn.LayerNorm(8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        mlp=nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(), nn.Linear(16, 8)),
    )  # fmt: skip
    fused = agrees(module, torch.randn(3, 5, 8))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert called(fused) == [] and kinds.count(layers.LayerNorm) == 2
    assert kinds.count(layers.SelfAttention) == kinds.count(layers.Constant) == 1


def test_tokens_positions_and_scales():
    """A class token in front, what is known of each position, and factors of channels in both orders of operands."""

    def forward(self, x):
        y = self.conv(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], dim=1) + self.places
        y = y + self.token.expand((y.size(0), 7, 4))
        y = functional.layer_norm(y, (4,), self.norm.weight, self.norm.bias, 0.1)
        return (self.scale * y.permute(0, 2, 1) * 2.0 + self.shift).flatten(1)

    values = {
        "token": torch.randn(1, 1, 4),
        "places": torch.randn(1, 7, 4),
        "scale": torch.randn(4, 1),
        "shift": torch.randn(1),
    }
    parts = {"conv": nn.Conv2d(3, 4, 2), "norm": nn.LayerNorm(4)} | {k: nn.Parameter(v) for k, v in values.items()}
    fused = agrees(Made(forward, **parts), torch.randn(2, 3, 3, 4))
    kinds = [type(node.layer) for node in fused.network._graph.nodes]
    assert called(fused) == []
    counted = [kinds.count(each) for each in (layers.Constant, layers.Scale, layers.Bias, layers.LayerNorm)]
    assert counted == [3, 2, 1, 1]


def test_views_of_what_is_written():
    """A view of a view that was written to shows what was written."""

    def forward(self, x):
        y = self.conv(x)
        part = y[:, 1:].relu_()
        return part[:, 1:] + part[:, :2]

    fused = agrees(Made(forward, conv=nn.Conv2d(3, 4, 2)), torch.randn(2, 3, 3, 4))
    assert called(fused) == []


def test_what_looks_like_a_view_of_one_image():
    """A function that mixes images, of one image the same as one that does not, and elements by their numbers."""

    def forward(self, x):
        y = self.conv(x)
        y = y.transpose(0, 1).reshape(y.shape[0], 1, 6)
        return y.view(y.shape[0], 6)[:, self.order]

    module = Made(forward, conv=nn.Conv2d(3, 1, 2), order=nn.Buffer(torch.tensor([3, 0, 5, 1, 2, 4])))
    agrees(module, torch.randn(1, 3, 3, 4))


def test_by_the_twin_of_what_is_called_as_it_is():
    module = Made(lambda self, x: self.norm(x) + self.other(x), norm=nn.LogSoftmax(-1), other=nn.InstanceNorm1d(4))
    fused = agrees(module, torch.randn(3, 4, 8))
    kinds = [type(node.layer.function) for node in fused.network._graph.nodes if isinstance(node.layer, layers.Call)]
    assert kinds == [nbt.nn.LogSoftmax, nbt.nn.InstanceNorm1d] and type(module.norm) is nn.LogSoftmax


def test_numbers():
    """On either side, in place and not, and what is no layer of one: quotients of numbers, and by 0."""

    def forward(self, x):
        y = (2 * self.conv(x) + 0.5) / 4 - 1
        y *= 3
        y.add_(1.0).sub_(0.25)
        return torch.mul(1 - y, 0.5) + 1.0 / (y.abs() + 1.0) + torch.add(y, 1.0, alpha=2.0)

    fused = agrees(Made(forward, conv=nn.Conv2d(3, 4, 2)), torch.randn(2, 3, 4, 5))
    assert called(fused) == ["abs", "truediv", "add"]
    agrees(Made(lambda self, x: x.sigmoid() / 0), torch.randn(2, 3, 4, 5))


def test_a_parameter_of_each_image():
    module = Made(
        lambda self, x: self.conv(x) * self.each, conv=nn.Conv2d(3, 4, 2), each=nn.Parameter(torch.randn(2, 4, 1, 1))
    )
    fused = nbt.fuse(module, x := torch.randn(2, 3, 4, 5))
    torch.testing.assert_close(fused(x), module(x))
    # that many rows are no row for each image
    rows = Made(lambda self, x: x + self.rows.expand(x.shape[0], 4), rows=nn.Parameter(torch.randn(2, 4)))
    torch.testing.assert_close(nbt.fuse(rows, x := torch.randn(2, 4))(x), rows(x))
    tiny = Made(lambda self, x: functional.layer_norm(x.relu() / 1e-310, (2, 4)))
    torch.testing.assert_close(nbt.fuse(tiny, x)(x), tiny(x), equal_nan=True)


def test_what_is_written_in_place_is_read_later():
    """A skip connection that begins before a ReLU in place carries what the ReLU has left."""

    def forward(self, x):
        y = self.conv(x)
        skip = y
        z = self.conv2(self.relu(y))
        z += skip
        return z + y

    module = Made(forward, conv=nn.Conv2d(3, 3, 1), conv2=nn.Conv2d(3, 3, 1), relu=nn.ReLU(inplace=True))
    agrees(module, torch.randn(2, 3, 4, 5))


def test_functions_in_place():
    def forward(self, x):
        y = self.conv(x)
        torch.tanh_(y)
        z = y.sigmoid_()
        z.add_(x)
        return torch.sigmoid_(y) + z

    assert not called(agrees(Made(forward, conv=nn.Conv2d(3, 3, 1)), torch.randn(2, 3, 4, 5)))


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv"])
@pytest.mark.parametrize(
    "other", [lambda x: 2.0, lambda x: x, lambda x: x.mean(1, True)], ids=["number", "tensor", "map"]
)
def test_operators_in_place(name, other):
    """Python's, of which torch.fx knows only those that make something new."""

    def forward(self, x):
        y = self.conv(x)
        skips, channels = [y], x.size(1)
        channels *= 2  # a number
        y = getattr(operator, name)(y, other(x))
        return torch.cat([y, skips[0]], 1).view(-1, channels, 4, 5)

    agrees(Made(forward, conv=nn.Conv2d(3, 3, 1)), torch.randn(2, 3, 4, 5))


def test_the_input_is_not_written():
    agrees(Made(lambda self, x: functional.relu(x * 2.0) + x), torch.randn(2, 3, 4, 4))
    agrees(Made(lambda self, x: self.a(x), a=nn.Identity()), torch.randn(2, 3, 4, 4))


UNKNOWN = {
    "numbers decide": lambda self, x: x + 1 if x.sum() > 0 else x - 1,
    "a part is written": lambda self, x: (lambda y: (y[:, :1].relu_(), y * 1.0)[1])(self.conv(x)),
    "a power in place": lambda self, x: self.conv(x).pow_(2.0) * 2.0,
    "in place by name": lambda self, x: (lambda y: (functional.leaky_relu_(y, 0.2), y + x)[1])(self.conv(x)),
    "in place by position": lambda self, x: (lambda y: (functional.rrelu(y, 0.0, 1.0, False, True), y + x)[1])(
        self.conv(x)
    ),
    "an image is written": lambda self, x: (lambda y: (y[-1].zero_(), y * 1.0)[1])(self.conv(x)),
    "isinstance decides": lambda self, x: self.conv(x * 2 if isinstance(x, torch.Tensor) else x),
    "is_tensor decides": lambda self, x: self.conv(x * 2 if torch.is_tensor(x) else x),
    "a graph that raises": lambda self, x: self.conv(x if torch.is_tensor(x) else x.data_),
    "an attribute decides": lambda self, x: x.values_ if hasattr(x, "values_") else self.conv(x),
    "behind a dropout": lambda self, x: (lambda y: functional.dropout(y, 0.5, False).relu_() + y)(self.conv(x)),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_called_as_a_whole(what):
    inner = Made(UNKNOWN[what], conv=nn.Conv2d(3, 3, 1))
    agrees(inner, torch.randn(2, 3, 4, 4), whole=True)
    around = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), inner).eval()
    assert called(agrees(around, torch.randn(2, 3, 4, 4)))[0].startswith("Made(")


def test_an_example_of_zeros():
    """What is multiplied tells two branches apart by other numbers than the example's."""
    inner = Made(UNKNOWN["isinstance decides"], conv=nn.Conv2d(3, 3, 1))
    for module in (inner, nn.Sequential(inner, nn.ReLU()).eval()):
        fused, x = nbt.fuse(module, torch.zeros(2, 3, 4, 4)), torch.randn(2, 3, 4, 4)
        with torch.no_grad():
            torch.testing.assert_close(fused(x), module(x), rtol=1e-4, atol=1e-5)
    indices = Made(lambda self, x: self.last(self.table(x.long() - 3).sum(1)), table=nn.Embedding(4, 2), last=nn.ReLU())
    fused = nbt.fuse(indices, torch.full((2, 5), 6.0))
    assert called(fused)[0].startswith("long, ") and not called(fused)[0].startswith("Made("), "of its own numbers"


@pytest.mark.parametrize("what", ["in place", "anew", "drawn", "dropped"])
def test_nothing_changes_by_planning(what):
    def forward(self, x):
        if what == "in place":
            self.count += 1.0
        elif what == "anew":
            self.count = self.count + 1.0
        noise = torch.randn(3) if what == "drawn" else 0.0
        x = functional.dropout(x, 0.5, what == "dropped")
        return x * self.count + noise

    module = Made(forward)
    module.register_buffer("count", torch.ones(3))
    for each in (module, nn.Sequential(Made(lambda self, x: torch.relu(self.inner(x)), inner=module)).eval()):
        buffer, value, state = module.count, module.count.clone(), torch.get_rng_state()
        nbt.fuse(each, torch.randn(2, 3, generator=torch.Generator()))
        assert module.count is buffer and torch.equal(buffer, value) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("gradients", [False, True])
def test_several_results_are_refused(gradients):
    for y, kind in ((lambda self, x: (x, x)), "tuple"), ((lambda self, x: {"y": x}), "dict"):
        for module in (Made(y), nn.Sequential(nn.ReLU(), Made(y)).eval()):
            with pytest.raises(TypeError, match=f"Made gives a {kind}; a module that is fused gives one tensor"):
                nbt.fuse(module, torch.randn(2, 3), gradients=gradients)


def test_graphs_are_checked():
    relu, add = layers.Activation("relu"), layers.Add()
    for steps, words in (
        ([(add, (0,))], "reads 2 values, not 1"),
        ([(relu, (0, 0))], "reads 1 values, not 2"),
        ([(relu, (1,))], "values before it are 0 to 0"),
        ([(relu, ())], "not 0"),
    ):
        with pytest.raises(ValueError, match=words):
            layers.Wired(steps)
    net = numbaprims.fuse(
        [relu, layers.Wired([(layers.Scale(2.0), (0,)), (add, (0, 1)), (layers.Concat([(), [relu]]), (2, 0))])],
        (1, 2, 3, 3),
    )
    x = torch.randn(1, 2, 3, 3)
    torch.testing.assert_close(net(x), torch.cat((3 * x.relu(), x.relu()), 1))


def test_the_example(capsys, monkeypatch):
    """examples/fused_networks.py: a network of its own, and the table."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "examples")
    example = vars(importlib.import_module("fused_networks"))  # by a name, which torch.compile asks for
    net = example["resnet"](width=2, classes=5)
    fused = agrees(net, torch.randn(1, 3, 33, 32))
    assert len([node for node in fused.network._graph.nodes if isinstance(node.layer, layers.Add)]) == 16
    ms, error = example["measured"](net, (torch.randn(1, 3, 33, 32),), 1)
    assert set(ms) - {"onnxruntime"} == {"torch", "torch nhwc", "fuse", "compile"} and error < 1e-5
    monkeypatch.setitem(example, "resnet", lambda: net)
    example["main"](["resnet", "--rounds", "1", "--size", "32"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("| resnet, 1 | 1 | ")
