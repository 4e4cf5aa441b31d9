"""`numbaprims.fuse`: what joins, folds or is written in place, and that none of it changes what is computed."""

import pathlib
import pickle
import re

import numpy as np
import pytest
from fusion_cases import RELU, Drawn, agrees, array, conv, norm
from helpers import SEEDS, has_module, in_domain
from hypothesis import given, strategies as st

import numbaprims
from numbaprims.fusion import depthwise as joining, layers
from numbaprims.fusion.graph import Product, Stack
from numbaprims.fusion.layers import (
    Activation,
    AvgPool,
    BatchNorm,
    Bias,
    Call,
    Concat,
    Conv,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    Linear,
    MaxPool,
    PReLU,
    Residual,
    Scale,
)  # fmt: skip
from numbaprims.ops.activation_kinds import ALIASES, KINDS
from numbaprims.stacks.operations import Pointwise, Window, steps_of

pytestmark = pytest.mark.cpu
PAGE = pathlib.Path(__file__).parent.parent / "docs" / "fusion.md"


@pytest.fixture(autouse=True)
def by_definition():
    with numbaprims.config(device="reference"):
        yield


def joined(net):
    """The paths of the layers of each call."""
    nodes = net._graph.nodes
    return [[nodes[v].path.replace("[", ".").replace("]", "")[1:] for v in item.nodes] for item in net._fused.items]


# ---------------------------------------------------------------- what joins


def test_blocks_of_pooling_norm_and_activation_are_one_stack():
    net = numbaprims.fuse([[MaxPool(3, 1, 1), norm(4), Dropout(), RELU]] * 5, (2, 4, 9, 8))
    [stack] = net.stacks
    window = Window("max", (3, 3), (1, 1), (1, 1), (1, 1))
    assert stack.operations == (window, Pointwise("batch_norm", 3), Pointwise("relu")) * 5
    assert len(stack.steps) == 5 and stack.steps == steps_of(stack.operations)
    assert len(stack.layers) == 15 and stack.parameters.shape == (4, 15) and stack.parameters.dtype == np.float32
    agrees(net, array(2, 4, 9, 8))


def test_parameters_have_the_roundings_of_batch_norm():
    layer = norm(6)
    [stack] = numbaprims.fuse([layer, Scale(0.1), PReLU(array(6))], (1, 6, 2, 2)).stacks
    inverse = np.float32(1) / np.sqrt(layer.var + np.float32(1e-5))
    expected = [layer.mean, inverse * layer.scale, layer.shift, np.full(6, 0.1, np.float32), array(6)]
    assert stack.parameters.tobytes() == np.stack(expected, axis=1).tobytes()
    [stack] = numbaprims.fuse([PReLU(array(6))], (1, 6, 2, 2), dtype="float16").stacks
    assert stack.parameters[:, 0].tobytes() == array(6).astype(np.float16).astype(np.float32).tobytes()


@pytest.mark.parametrize("kind", sorted({*KINDS, *ALIASES} - {"prelu", "glu"}))
@pytest.mark.parametrize(
    "more", [{}, {"softplus": {"beta": 2.0}, "power": {"gamma": 2.0}, "gelu": {"approximate": "tanh"}}]
)
def test_every_activation_is_an_operation(kind, more):
    words = {"threshold": {"threshold": 0.25, "value": -3.0}, "clip": {"min": -0.5}, **more}.get(kind, {})
    if kind == "power":
        words = {"alpha": 0.5, "beta": -0.25, "gamma": 3.0, **words}
    net = numbaprims.fuse([MaxPool(1), Activation(kind, **words), Scale(1.0)], (2, 3, 4, 5), dtype="float64")
    assert len(net.stacks) == 1
    x = in_domain(np.random.default_rng(0).uniform(-2, 2, (2, 3, 4, 5)), kind)
    expected = numbaprims.activation(x, kind, **words)
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(net(x), expected, rtol=1e-13, atol=1e-15)


def test_norms_and_activations_fold_into_products():
    body = [conv(6, 3, 3), norm(6), Scale(2.0), Bias(array(6)), Activation("elu", alpha=0.5), RELU]
    net = numbaprims.fuse([body, Flatten(), Linear(array(5, 120)), norm(5), Activation("tanh")], (2, 3, 5, 4))
    assert joined(net) == [["0.0", "0.1", "0.2", "0.3", "0.4"], ["0.5"], ["1"], ["2", "3", "4"]]
    first, _, _, last = net._fused.items
    assert isinstance(first, Product) and len(first.folded) == 3 and len(last.folded) == 1
    agrees(net, array(2, 3, 5, 4))
    exact = numbaprims.fuse(body[:4], (2, 3, 5, 4), exact=True)
    assert joined(exact) == [["0"], ["1", "2", "3"]]
    agrees(exact, array(2, 3, 5, 4))
    # a weight that is not finite stays out of what a convolution sums
    endless = BatchNorm(np.ones(6), np.zeros(6), np.zeros(6), np.zeros(6), 0.0)
    assert joined(numbaprims.fuse([conv(6, 3), endless], (2, 3, 5, 4))) == [["0"], ["1"]]
    # over the last dimension, which is not that of the channels
    assert joined(numbaprims.fuse([Linear(array(5, 4)), norm(3)], (2, 3, 4))) == [["0"], ["1"]]
    assert joined(numbaprims.fuse([Linear(array(5, 4)), norm(5)], (2, 3, 4), layout="NHWC")) == [["0", "1"]]


def depthwise(c, size=3, **words):
    return Conv(array(c, 1, size, size, seed=c), array(c), padding=words.pop("padding", size // 2), groups=c, **words)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_depthwise_convolutions_join_stacks_where_it_pays(layout, monkeypatch):
    shape = (2, 5, 12, 9) if layout == "NCHW" else (2, 12, 9, 5)
    both = [depthwise(5), norm(5), Activation("relu6"), depthwise(5, stride=2), norm(5)]
    cases = [
        (both, [["0", "1", "2", "3", "4"]]),
        ([MaxPool(3, 1, 1), depthwise(5, activation="silu")], [["0", "1"]]),
        ([Residual([depthwise(5, 5), norm(5)]), RELU], [["0.body.0", "0.body.1", "0", "1"]]),
        ([norm(5), depthwise(5, dilation=2, padding=2), conv(4, 5), RELU, depthwise(4), norm(4), RELU],
         [["0", "1"], ["2", "3"], ["4", "5", "6"]]),
        ([depthwise(5, 9), MaxPool(2)], [["0"], ["1"]]),  # more weights than a stack writes out
        ([depthwise(5, padding=2), MaxPool(2)], [["0"], ["1"]]),  # padded by more than half of its window
        ([Conv(array(10, 1, 3, 3), groups=5), MaxPool(2)], [["0"], ["1"]]),  # two results of a channel
    ]  # fmt: skip
    for net, calls in cases:
        monkeypatch.setattr(joining, "PAYS", np.inf)
        fused = numbaprims.fuse(net, shape, layout=layout)
        assert joined(fused) == calls
        with numbaprims.config(device="cpu"):
            agrees(fused, array(*shape))
        monkeypatch.setattr(joining, "PAYS", 0.0)
        assert all(isinstance(item, Product) for item in numbaprims.fuse(both, shape, layout=layout)._fused.items)
    monkeypatch.setattr(joining, "PAYS", np.inf)
    exact = numbaprims.fuse(both, shape, layout=layout, exact=True)
    assert [each.text.split("/")[0] for each in exact.stacks[0].operations] == [
        "depthwise", "bias", "batch_norm", "clipped_relu", "depthwise", "bias", "batch_norm"
    ]  # fmt: skip
    agrees(exact, array(*shape))
    assert "[1] BatchNorm(5), folded into its weights" in str(numbaprims.fuse(both, shape, layout=layout))


def test_depthwise_convolutions_of_other_types(monkeypatch):
    monkeypatch.setattr(joining, "PAYS", np.inf)
    for dtype in ("float64", "float16", "bfloat16"):
        net = numbaprims.fuse([MaxPool(3, 1, 1), depthwise(3)], (1, 3, 6, 7), dtype=dtype, strategy="one")
        assert len(net.stacks) == 1 and "layers: 2" in str(net)


def test_a_sum_joins_the_stack_of_its_later_operand():
    pool, x = [MaxPool(3, 1, 1), norm(4)], array(2, 4, 6, 5)
    for body, shortcut, expected in [
        (pool, (), [["0.body.0", "0.body.1", "0", "1"]]),
        (pool, [norm(4)], [["0.shortcut.0"], ["0.body.0", "0.body.1", "0", "1"]]),
        ([conv(4, 4, 3)], pool, [["0.body.0"], ["0.shortcut.0", "0.shortcut.1", "0", "1"]]),
        ([conv(4, 4, 3)], (), [["0.body.0"], ["0", "1"]]),
        ((), (), [["0", "1"]]),
    ]:
        net = numbaprims.fuse([Residual(body, shortcut), RELU], (2, 4, 6, 5))
        assert joined(net) == expected
        agrees(net, x)
    chain = numbaprims.fuse([Call(np.copy), *[Residual([RELU], [norm(4)])] * 6], (2, 4, 6, 5))
    assert max(len(stack.inputs) for stack in chain.stacks) == 2
    agrees(chain, x)


def test_a_stack_adds_four_arrays_at_most():
    def nested(depth):
        return Residual([nested(depth - 1)] if depth else [RELU], [Call(np.negative)])

    net = numbaprims.fuse([nested(6)], (1, 2, 3, 3))
    assert sorted(len(stack.inputs) - 1 for stack in net.stacks) == [3, 4]
    assert "adds 4 arrays already" in str(net)
    agrees(net, array(1, 2, 3, 3))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_branches_write_into_their_places(layout):
    shape = (2, 4, 6, 5) if layout == "NCHW" else (2, 6, 5, 4)
    branches = [[MaxPool(3, 1, 1)], [conv(3, 4), RELU], (), [Concat([[Scale(2.0)], [Call(np.exp)]])]]
    net = numbaprims.fuse([RELU, Concat(branches), norm(19)], shape, layout=layout)
    program = net._fused
    [outer, inner] = sorted(program.copies, reverse=True)
    assert len(program.copies[outer]) == 0, "what the ReLU gives is written where the third branch begins"
    assert len(program.copies[inner]) == 1, "a call's result"
    agrees(net, array(*shape))
    alone = numbaprims.fuse(Concat([[conv(3, 4)], [norm(4)]]), shape, layout=layout)
    agrees(alone, array(*shape))
    # what a dense block passes on grows where it lies
    dense = [conv(4, 4), *(Concat([(), [norm(c), RELU, conv(2, c, 3)]]) for c in (4, 6, 8)), norm(10)]
    dense = numbaprims.fuse(dense, shape, layout=layout)
    assert not any(dense._fused.copies.values())
    agrees(dense, array(*shape))
    memory = array(1, 8, 2, 2)
    with pytest.raises(ValueError, match="out shares memory with x"):
        numbaprims.fuse(Concat([RELU, norm(4)]), (1, 4, 2, 2))(memory[:, 4:], out=memory)
    with pytest.raises(ValueError, match="the result has shape .1, 8, 2, 2."):
        numbaprims.fuse(Concat([(), ()]), (1, 4, 2, 2))(memory[:, 4:], out=array(1, 9, 2, 2))


def test_what_is_read_once_is_overwritten(monkeypatch):
    given = []
    real = numbaprims.ops.stack.stack

    def noted(x, *args, out=None, **words):
        given.append(out is x)
        return real(x, *args, out=out, **words)

    monkeypatch.setattr("numbaprims.fusion.place.stack", noted)
    body = [norm(4), MaxPool(1)]
    net = numbaprims.fuse([norm(3), RELU, conv(4, 3), PReLU(array(4)), RELU, Residual(body)], (1, 3, 4, 4))
    net(array(1, 3, 4, 4))
    assert given == [False, True, False], "x is the caller's; the convolution's result is not; the sum reads it twice"
    agrees(net, array(1, 3, 4, 4))


def test_what_lies_in_a_concatenation_is_not_overwritten():
    """The network's value before the residual lies in the first half of what the body's stack reads alone."""
    body = [Concat([(), [norm(4)]]), RELU, Scale(2.0), conv(4, 8)]
    agrees(numbaprims.fuse([conv(4, 3), Residual(body)], (2, 3, 6, 5)), array(2, 3, 6, 5))
    agrees(numbaprims.fuse([conv(4, 3), Residual(Concat([()]))], (2, 3, 6, 5)), array(2, 3, 6, 5))


def test_other_ranks():
    net = numbaprims.fuse([Linear(array(6, 5)), PReLU(array(6)), norm(6)], (3, 5))
    assert joined(net) == [["0"], ["1", "2"]]
    agrees(net, array(3, 5))
    agrees(net, array(0, 5))
    for shape, layout in [((2, 4, 7), "NCHW"), ((2, 7, 4), "NHWC"), ((2, 4, 3, 5, 2), "NCHW"), ((2, 4, 0), "NCHW")]:
        pool = [MaxPool(2), RELU] if 0 not in shape else []
        net = numbaprims.fuse([norm(4), Residual(RELU, Scale(array(4))), *pool], shape, layout=layout)
        assert [type(item) for item in net._fused.items].count(Stack) == 3 + bool(pool) and agrees(
            net, array(*shape)
        ).ndim
        assert not pool or "of images, not of arrays of" in str(net)


def test_global_pooling_is_a_window_of_a_plane():
    net = numbaprims.fuse([GlobalAvgPool(), RELU, GlobalMaxPool()], (2, 5, 4, 3), layout="NHWC")
    assert net.stacks[0].operations[0] == Window("avg", (5, 4), (5, 4)) and len(net.stacks[0].steps) == 2
    agrees(net, array(2, 5, 4, 3))
    # along a row it is a reduction
    net = numbaprims.fuse([RELU, GlobalAvgPool(), RELU, MaxPool(1)], (2, 3, 5, 4))
    assert joined(net) == [["0"], ["1"], ["2", "3"]] and "has kernels of its own" in str(net)
    assert joined(numbaprims.fuse([RELU, AvgPool(4)], (2, 3, 5, 5))) == [["0"], ["1"]]
    agrees(net, array(2, 3, 5, 4))


def test_a_layer_alone_is_its_own_function(monkeypatch):
    def never(*args, **words):
        raise AssertionError("a stack was called")

    monkeypatch.setattr("numbaprims.fusion.place.stack", never)
    for layer in (RELU, norm(3), PReLU(array(3)), MaxPool(2)):
        assert len(numbaprims.fuse([layer, Call(np.copy)], (1, 3, 4, 4))(array(1, 3, 4, 4)))


def test_windows_are_those_of_pooling():
    for words in [
        {"padding": "same", "stride": 2}, {"padding": ((0, 1), (1, 0)), "dilation": (2, 1)},
        {"stride": (2, 3), "ceil_mode": True, "padding": 1}, {"padding": 1, "count_include_pad": False},
    ]:  # fmt: skip
        for layer in (MaxPool, AvgPool):
            if layer is AvgPool or "count_include_pad" not in words:
                net = numbaprims.fuse([RELU, layer((3, 2), **words)], (2, 3, 8, 7))
                assert len(net.stacks) == 1
                agrees(net, array(2, 3, 8, 7))


def test_no_images():
    for first in (Conv(np.ones((2, 1, 3, 3), np.float32), padding=1, groups=2), RELU):
        assert numbaprims.fuse([first, MaxPool(2)], (0, 2, 8, 8))(array(0, 2, 8, 8)).shape == (0, 2, 4, 4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_kernels_of_stacks_give_the_bits_of_single_layers(dtype, layout):
    """Where no sum is taken in another order."""
    shape = (2, 5, 12, 11) if layout == "NCHW" else (2, 12, 11, 5)
    mean = AvgPool(3, 1, 1, count_include_pad=False) if layout == "NCHW" else MaxPool(3, 1, 1)
    network = [
        mean, norm(5), Activation("gelu"), Residual([PReLU(array(5)), Scale(array(5)), Bias(0.1)]), RELU,
        MaxPool((2, 3), 2), Activation("softplus", beta=2.0), norm(5),
    ]  # fmt: skip
    with numbaprims.config(device="cpu"):
        for strategy in ("auto", "one"):
            net = numbaprims.fuse(network, shape, dtype=dtype, layout=layout, strategy=strategy)
            x = array(*shape).astype(dtype)
            assert net(x).tobytes() == net.layer_by_layer(x).tobytes()


@pytest.mark.cpu
@pytest.mark.parametrize("solver", ["planes", "layers"])
@pytest.mark.parametrize("width", [3, 8, 11, 28])
def test_exponentials_of_narrow_rows_have_the_bits_of_single_layers(solver, width):
    """Whatever part of a vector a row is."""
    x = array(2, 5, 6, width).astype(np.float32)
    for network in ([norm(5), Activation("gelu")], [MaxPool(3, 1, 1), Activation("tanh"), MaxPool(3, 2, 1)]):
        net = numbaprims.fuse(network, x.shape, dtype="float32")
        with numbaprims.config(device="cpu", algorithm={"stack": solver} if len(network) > 2 else None):
            assert net(x).tobytes() == net.layer_by_layer(x).tobytes()


# ---------------------------------------------------------------- the object


def test_strategies():
    blocks = [[MaxPool(3, 1, 1), RELU]] * 7
    made = {
        word: numbaprims.fuse(blocks, (1, 2, 9, 9), strategy=word) for word in ("auto", "one", "five", "unrestricted")
    }
    assert [(net.stacks[0].most, net.stacks[0].limit) for net in made.values()] == [(0, 0), (1, 0), (5, 0), (0, -1)]
    assert numbaprims.fuse(blocks, (1, 2, 9, 9), limit=4096).stacks[0].limit == 4096
    x = array(1, 2, 9, 9)
    assert len({net(x).tobytes() for net in made.values()}) == 1
    plane = 2 * 9 * 9 * 4
    moved = [net._bytes(net._fused) for net in made.values()]
    assert moved == [2 * plane, 14 * plane, 4 * plane, 2 * plane]
    assert made["auto"]._bytes(made["auto"]._single) == 28 * plane


def test_explain():
    net = numbaprims.fuse([conv(4, 3), norm(4), Residual([MaxPool(3, 1, 1)]), Call(np.copy), RELU], (2, 3, 64, 64))
    words = net.explain()
    assert str(net) == words and words.splitlines()[1:3] == [
        "launches: 4, layer by layer 6",
        "MiB moved: 1.09, layer by layer 1.59 (where caches hold every sequence)",
    ]
    for said in (
        "1. Conv; a convolution is a launch of its own", "folded into its weights", "what a function does",
        "2. stack of operations: 2, steps: 1; it begins here, since what it reads is computed by [1] BatchNorm",
        "   [2].body[0] MaxPool(kernel_size=3, stride=1, padding=1) -> (2, 4, 64, 64)",
    ):  # fmt: skip
        assert said in words
    assert repr(net) == "<fused network, x (2, 3, 64, 64) float32, 4 calls>"


def test_trace_prints_every_layer_and_walk_steps_through(capsys):
    net = numbaprims.fuse([MaxPool(2), norm(3), RELU], (1, 3, 4, 4))
    x = array(1, 3, 4, 4)
    y = net.run_reference(x, trace=True)
    assert y.dtype == np.float64
    lines = capsys.readouterr().out.splitlines()
    pooled = x.reshape(1, 3, 2, 2, 2, 2).max((3, 5))
    assert lines[0] == f"[0] MaxPool(kernel_size=2): (1, 3, 2, 2), {pooled.min():.6g} to {pooled.max():.6g}"
    steps = list(net.walk(x))
    assert len(lines) == len(steps) == 3 and np.array_equal(steps[-1][1], y) and steps[1][0] == "[1] BatchNorm(3)"


def test_it_pickles_and_maps():
    net = numbaprims.fuse(
        [conv(4, 3, 3), norm(4), MaxPool(2), Activation("gelu"), Flatten(), Linear(array(2, 16))], (2, 3, 4, 4)
    )
    twin, x = pickle.loads(pickle.dumps(net)), array(5, 3, 4, 4)
    assert np.array_equal(net(x), twin(x)) and str(net)[:80] == str(twin)[:80]
    for y, part in zip(net.map([x[:1], x[1:]]), (slice(1), slice(1, None)), strict=True):
        assert np.array_equal(y, net(x[part]))
    assert net(x[:0]).shape == (0, 2)


def test_what_changes_nothing_gives_a_copy():
    for layers_ in ([], [Dropout(), Activation("identity")], Residual([[]], [Scale(0.0)])):
        net = numbaprims.fuse(layers_, (1, 2, 3, 3))
        x = array(1, 2, 3, 3)
        assert np.array_equal(net(x), x) and not np.shares_memory(net(x), x)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types(dtype):
    net = numbaprims.fuse(
        [conv(4, 3), norm(4), MaxPool(3, 2, 1), PReLU(array(4)), AvgPool(2)], (2, 3, 9, 8), dtype=dtype
    )
    agrees(net, array(2, 3, 9, 8).astype(dtype))


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_tensors():
    import torch

    layers_ = [conv(4, 3), norm(4), MaxPool(3, 2, 1), PReLU(array(4)), Concat([RELU, Scale(array(4))])]
    net = numbaprims.fuse(layers_, (2, 3, 9, 8))
    x = array(2, 3, 9, 8)
    y = net(torch.from_numpy(x))
    assert isinstance(y, torch.Tensor) and np.array_equal(y.numpy(), net(x))
    last = net(torch.from_numpy(x).contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, y, rtol=1e-5, atol=1e-5)
    half = numbaprims.fuse(layers_, (2, 3, 9, 8), dtype=torch.bfloat16)
    assert (half(torch.from_numpy(x).bfloat16()).float() - y).abs().max() < 0.05


# ---------------------------------------------------------------- drawn networks


@pytest.mark.parametrize("device", ["reference", "cpu"])
@given(st.data(), SEEDS)
def test_fused_networks_compute_what_their_layers_compute(device, data, seed):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)))
    layout = data.draw(st.sampled_from(("NCHW", "NHWC")))
    drawn = Drawn(data.draw, shape, layout)
    given_shape = shape if layout == "NCHW" else (shape[0], *shape[2:], shape[1])
    net = numbaprims.fuse(
        drawn.layers, given_shape, dtype="float64", layout=layout, exact=data.draw(st.booleans()),
        strategy=data.draw(st.sampled_from(("auto", "one", "five", "unrestricted"))),
    )  # fmt: skip
    n, c, h, w = drawn.shape
    assert net.output_shape == ((n, c, h, w) if layout == "NCHW" else (n, h, w, c))
    nodes, items = net._graph.nodes, net._fused.items
    assert sorted(value for item in items for value in item.nodes) == list(range(1, len(nodes))), "each node once"
    done = {0}
    for item in items:
        assert done >= set(item.inputs), "what it reads is there"
        done.add(item.result)
        if isinstance(item, Stack):
            for before, value in zip(item.nodes, item.nodes[1:], strict=False):
                assert before in nodes[value].inputs and net._graph.readers[before] == 1
    with numbaprims.config(device=device):
        agrees(net, np.random.default_rng(seed).standard_normal(given_shape))


def test_what_nobody_reads():
    steps = [(Call(np.tanh), (0,)), (Scale(3.0), (0,)), (Call(np.exp), (2,)), (Scale(2.0), (0,))]
    x = array(2, 3, 4, 4)
    np.testing.assert_array_equal(numbaprims.fuse(layers.Wired(steps), x.shape)(x), 2 * x)


def test_the_page_names_every_layer_and_its_examples_run(capsys):
    page = PAGE.read_text()
    kinds = {
        name for name, value in vars(layers).items() if isinstance(value, type) and issubclass(value, layers.Layer)
    }
    inner = {"Layer", "Product", "Add", "Multiply", *(name for name in kinds if name.startswith("_"))}
    assert {name for name in kinds - inner if f"`{name}" not in page} == set()
    code = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(code) == 5
    with numbaprims.config(device="cpu"):
        exec(compile("\n".join(code), str(PAGE), "exec"), {"__name__": "page"})
    assert "launches: " in capsys.readouterr().out


def test_shapes_are_found_without_computing(monkeypatch):
    """Layers are asked what they give for no images: their definition is not run for that."""
    monkeypatch.setattr("numbaprims.reference.pooling.forward", lambda *_: pytest.fail("the definition is run"))
    plan = numbaprims.fuse([layers.MaxPool(3, stride=2), layers.AvgPool(2)], (2, 3, 11, 9))
    assert plan.output_shape == (2, 3, 2, 2)
