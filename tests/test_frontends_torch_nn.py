"""Modules of `numbaprims.frontends.torch.nn` beside torch's, and what docs/frontends-torch.md says."""

import copy
import doctest
import pathlib
import re

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from numbaprims.frontends import torch as nbt  # noqa: E402

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "frontends-torch.md"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


CLASSES = torch.tensor([[0, 3], [1, 1], [2, 0]])
PADS = ("Zero", "Reflection", "Replication", "Circular")
MODULES = {
    "Linear": [((4, 3), {}, (2, 5, 4)), ((4, 3), {"bias": False}, (4,))],
    "Conv1d": [((4, 6, 3), {"padding": "same", "dilation": 2}, (2, 4, 9)), ((4, 6, 3), {}, (4, 9))],
    "Conv2d": [
        ((4, 6, 3), {"stride": 2, "padding": (1, 2), "groups": 2, "bias": False}, (2, 4, 9, 8)),
        *[((4, 6, 3), {"padding": 1, "padding_mode": mode}, (2, 4, 9, 8)) for mode in ("reflect", "circular")],
    ],
    "Conv3d": [((4, 6, (3, 2, 1)), {}, (2, 4, 5, 4, 3))],
    "ConvTranspose1d": [((4, 6, 3), {"stride": 2}, (2, 4, 9))],
    "ConvTranspose2d": [((4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}, (2, 4, 5, 4))],
    "ConvTranspose3d": [((4, 6, 2), {"stride": 3}, (4, 3, 4, 2))],
    "LeakyReLU": [((0.2,), {}, (3, 4))],
    "PReLU": [((), {}, (3, 4)), ((4,), {}, (3, 4, 2))],
    "ELU": [((0.5,), {"inplace": True}, (3, 4))],
    "CELU": [((0.5,), {}, (3, 4))],
    "GELU": [((), {}, (3, 4)), (("tanh",), {}, (3, 4))],
    "Softplus": [((2.0, 1.0), {}, (3, 4))],
    "Hardtanh": [((-0.5, 0.3), {}, (3, 4))],
    "Hardshrink": [((0.4,), {}, (3, 4))],
    "Softshrink": [((0.4,), {}, (3, 4))],
    "Threshold": [((0.1, 2.0), {}, (3, 4))],
    "GLU": [((1,), {}, (3, 4, 2))],
    "Softmax": [((1,), {}, (3, 4, 2)), ((-1,), {}, (4,))],
    "Softmax2d": [((), {}, (3, 4, 2, 2)), ((), {}, (4, 2, 2))],
    "LogSoftmax": [((0,), {}, (3, 4, 2))],
    "LocalResponseNorm": [((3,), {"alpha": 0.5, "k": 2.0}, (2, 5, 3, 2))],
    "CrossEntropyLoss": [
        ((), {}, (3, 4), CLASSES[:, 0]),
        ((torch.arange(4.0),), {"ignore_index": 1, "reduction": "sum"}, (3, 4, 2), CLASSES),
        ((), {"reduction": "none", "label_smoothing": 0.1}, (3, 4, 2), CLASSES),
        ((), {}, (4,), CLASSES[0, 1]),
        ((), {"reduction": "none"}, (4,), CLASSES[0, 1]),
        ((), {"label_smoothing": 0.2}, (3, 4), torch.rand(3, 4)),
    ],
    "NLLLoss": [((torch.arange(4.0),), {}, (3, 4, 2), CLASSES), ((), {"reduction": "sum"}, (4,), CLASSES[1, 0])],
    "BatchNorm1d": [((4,), {}, (3, 4)), ((4,), {"momentum": None}, (3, 4, 5)), ((4, 0.1, 0.3, False), {}, (3, 4))],
    "BatchNorm2d": [((4,), {"track_running_stats": False}, (3, 4, 5, 2)), ((4,), {"eps": 0.1}, (3, 4, 5, 2))],
    "BatchNorm3d": [((4,), {}, (3, 4, 5, 2, 2))],
    "Dropout": [((0.0,), {}, (3, 4))],  # what it drops is not what torch drops: test_random.py
    "LayerNorm": [((6,), {}, (3, 4, 6)), (((4, 6),), {"bias": False}, (3, 4, 6)), ((6, 0.1, False), {}, (3, 6))],
    "RMSNorm": [((6,), {}, (3, 4, 6)), (((4, 6), 0.1, False), {}, (3, 4, 6))],
    "GroupNorm": [((2, 6), {}, (3, 6, 5, 2)), ((6, 6), {"eps": 0.1}, (3, 6, 5)), ((3, 6, 1e-5, False), {}, (3, 6, 4))],
    "InstanceNorm1d": [((4,), {"affine": True}, (3, 4, 5)), ((4,), {}, (4, 5))],
    "InstanceNorm2d": [((4,), {"affine": True}, (3, 4, 5, 2)), ((4,), {"track_running_stats": True}, (3, 4, 5, 2))],
    "InstanceNorm3d": [((4, 0.1), {}, (3, 4, 5, 2, 2))],
    "MaxPool1d": [((3,), {"stride": 2, "padding": 1}, (2, 4, 9)), ((2,), {"ceil_mode": True}, (4, 9))],
    "MaxPool2d": [((3, 2, 1), {}, (2, 4, 9, 8)), ((2, (2, 1)), {"dilation": (1, 2), "ceil_mode": True}, (4, 9, 8))],
    "MaxPool3d": [((2,), {}, (2, 3, 4, 5, 4))],
    "AvgPool1d": [((3, 2, 1), {"ceil_mode": True}, (2, 4, 9)), ((2,), {}, (4, 9))],
    "AvgPool2d": [
        ((3, 2, 1), {"count_include_pad": False}, (2, 4, 9, 8)),
        ((2,), {"divisor_override": 3}, (2, 4, 9, 8)),
        (((2, 3),), {"ceil_mode": True}, (4, 9, 8)),
    ],
    "AvgPool3d": [((2,), {}, (2, 3, 4, 5, 4))],
    "LPPool1d": [((2, 3, 2), {}, (2, 4, 9)), ((1, 3, 2), {}, (2, 4, 9))],
    "LPPool2d": [((4.0, 2), {}, (2, 4, 9, 8)), ((2, 2), {"ceil_mode": True}, (2, 4, 9, 8))],
    "LPPool3d": [((2, 2), {}, (2, 3, 4, 5, 4))],
    "AdaptiveMaxPool1d": [((4,), {}, (2, 4, 9))],
    "AdaptiveMaxPool2d": [(((None, 3),), {}, (2, 4, 9, 8)), ((1,), {}, (4, 9, 8))],
    "AdaptiveMaxPool3d": [((2,), {}, (2, 3, 4, 5, 4))],
    "AdaptiveAvgPool1d": [((4,), {}, (4, 9))],
    "AdaptiveAvgPool2d": [(((5, None),), {}, (2, 4, 9, 8)), ((1,), {}, (2, 4, 9, 8))],
    "AdaptiveAvgPool3d": [((2,), {}, (2, 3, 4, 5, 4))],
    "Upsample": [
        ((), {"scale_factor": 2}, (2, 3, 4, 5)), (((7, 3),), {"mode": "bilinear", "align_corners": True}, (2, 3, 4, 5)),
        ((9,), {"mode": "linear"}, (2, 3, 4)), ((), {"scale_factor": 2, "mode": "area"}, (2, 3, 4, 5)),
    ],
    **{f"{kind}Pad1d": [(((2, 1),), {}, (2, 3, 4)), ((1,), {}, (3, 4))] for kind in PADS},
    **{f"{kind}Pad2d": [(((2, 1, 0, 3),), {}, (2, 3, 4, 5)), ((1,), {}, (3, 4, 5))] for kind in PADS},
    **{f"{kind}Pad3d": [(((2, 1, 0, 3, 1, 1),), {}, (2, 3, 4, 4, 3))] for kind in PADS},
    "ConstantPad1d": [((1, 0.5), {}, (3, 4)), (((-1, 2), 3.0), {}, (2, 3, 4)), ((1, 2.0), {}, (4,))],
    "ConstantPad2d": [((1, 0.5), {}, (2, 3, 4, 5)), (((0, -1, 2, 0), -1.5), {}, (3, 4, 5))],
    "ConstantPad3d": [((1, 0.5), {}, (2, 3, 4, 5, 2))],
    "UpsamplingNearest2d": [((), {"scale_factor": 3}, (2, 3, 4, 5))],
    "UpsamplingBilinear2d": [(((8, 3),), {}, (2, 3, 4, 5))],
}  # fmt: skip


#: Whose gradient torch gives for inputs that are log-probabilities only: test_frontends_torch_losses.py.
LOSSES = ("CTCLoss",)
#: Whose input has no gradient: test_frontends_torch_places.py.
OF_INDICES = ("Embedding",)
#: Those that give several tensors: test_frontends_torch_recurrent.py.
RECURRENT = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
#: Whose calls take more than one tensor: test_frontends_torch_attention.py.
ATTENTION = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer")
ELSEWHERE = (*LOSSES, *OF_INDICES, *RECURRENT, *ATTENTION)


@pytest.mark.cpu  # minutes in the emulator
@pytest.mark.parametrize("name", [name for name in nbt.nn.__all__ if name not in ("replace", *ELSEWHERE)])
def test_module(name):
    for args, kwargs, shape, *more in MODULES.get(name, [((), {}, (3, 4))]):
        theirs = getattr(torch.nn, name)(*args, **kwargs)
        ours = getattr(nbt.nn, name)(*args, **kwargs)
        assert list(ours.state_dict()) == list(theirs.state_dict()) and isinstance(ours, type(theirs))
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.normal_()
        ours.load_state_dict(theirs.state_dict())
        for training in (True, True, False):
            found = []
            x = torch.randn(shape)
            for module in (ours.train(training), theirs.train(training)):
                given = x.clone().requires_grad_()
                inner = given * 1.0
                y = module(inner, *more)
                assert module is theirs or torch.equal(inner, x), "inplace changes nothing here"
                module.zero_grad()
                (y - 0.3).square().sum().backward()
                found.append([y, given.grad, *(p.grad for p in module.parameters()), *module.buffers()])
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_initial_values_are_torchs():
    for name, args in (("Linear", (4, 3)), ("Conv2d", (4, 6, 3)), ("ConvTranspose2d", (4, 6, 3))):
        torch.manual_seed(5)
        theirs = getattr(torch.nn, name)(*args)
        torch.manual_seed(5)
        assert torch.equal(getattr(nbt.nn, name)(*args).weight, theirs.weight)


def test_module_with_an_activation_and_an_output_size():
    x = torch.randn(2, 4)
    layer = nbt.nn.Linear(4, 3, activation="relu")
    torch.testing.assert_close(layer(x), functional.relu(functional.linear(x, layer.weight, layer.bias)))
    up = nbt.nn.ConvTranspose2d(2, 3, 3, stride=2, activation=("leaky_relu", {"negative_slope": 0.3}))
    image = torch.randn(1, 2, 4, 4)
    want = functional.leaky_relu(torch.nn.ConvTranspose2d.forward(up, image, output_size=(10, 10)), 0.3)
    torch.testing.assert_close(up(image, output_size=(10, 10)), want, rtol=1e-4, atol=1e-5)
    image_layer = nbt.nn.Conv2d(2, 3, 3, activation="relu")
    assert image_layer(image).min() == 0


def test_places_of_maxima():
    x = torch.randn(2, 3, 9, 8)
    for name, args in (("MaxPool2d", (3, 2)), ("AdaptiveMaxPool2d", (4,))):
        ours, theirs = (getattr(layers, name)(*args, return_indices=True) for layers in (nbt.nn, torch.nn))
        for given in (x, x.to(memory_format=torch.channels_last), x[0]):
            for mine, other in zip(ours(given), theirs(given), strict=True):
                assert torch.equal(mine, other)


def test_refusals_and_warnings_are_torchs():
    x = torch.randn(1, 4)
    for layers in (torch.nn, nbt.nn):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
            layers.BatchNorm1d(4)(x)
        with pytest.raises(ValueError, match="expected 4D input"):
            layers.BatchNorm2d(4)(x)
    for module in (nbt.nn.Softmax(), nbt.nn.LogSoftmax()):
        with pytest.warns(UserWarning, match="Implicit dimension choice for .*softmax") as warned:
            y = module(x.reshape(2, 2))
        assert warned[0].filename == __file__
        torch.testing.assert_close(y, type(module)(1)(x.reshape(2, 2)))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 4, 0, 3)])
def test_batch_norm_of_no_elements(shape, momentum):
    found = []
    for layers in (torch.nn, nbt.nn):
        module, x = layers.BatchNorm2d(4, momentum=momentum), torch.ones(shape, requires_grad=True)
        y = module(x)
        y.sum().backward()
        found.append([y, x.grad, *module.buffers()])
    torch.testing.assert_close(*found)


def test_a_refused_batch_is_not_counted():
    module = nbt.nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match="shape"):
        module(torch.ones(2, 5))
    assert module.num_batches_tracked == 0


def test_replace():
    class Odd(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(inplace=True), torch.nn.Flatten(), torch.nn.Linear(16, 3), Odd(3, 2)
    )
    twin = copy.deepcopy(model)
    assert nbt.nn.replace(model) is model
    assert [type(m) for m in model] == [nbt.nn.Conv2d, nbt.nn.ReLU, torch.nn.Flatten, nbt.nn.Linear, Odd]
    x = torch.randn(2, 1, 4, 4)
    torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == list(twin.state_dict())


def test_examples_run():
    failed, tried = doctest.testmod(nbt.nn)
    assert failed == 0 < tried


@pytest.mark.cpu
def test_the_pages_examples_run():
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(code) == 5
    exec(compile("\n".join(code), str(PAGE), "exec"), {"__name__": "page"})
