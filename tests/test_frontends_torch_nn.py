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


MODULES = {
    "Linear": [((4, 3), {}, (2, 5, 4)), ((4, 3), {"bias": False}, (4,))],
    "Conv1d": [((4, 6, 3), {"padding": "same", "dilation": 2}, (2, 4, 9)), ((4, 6, 3), {}, (4, 9))],
    "Conv2d": [
        ((4, 6, 3), {"stride": 2, "padding": (1, 2), "groups": 2, "bias": False}, (2, 4, 9, 8)),
        ((4, 6, 3), {"padding": 1, "padding_mode": "reflect"}, (2, 4, 9, 8)),
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
    "Threshold": [((0.1, 2.0), {}, (3, 4))],
    "GLU": [((1,), {}, (3, 4, 2))],
}


@pytest.mark.cpu  # minutes in the emulator
@pytest.mark.parametrize("name", [name for name in nbt.nn.__all__ if name != "replace"])
def test_module(name):
    for args, kwargs, shape in MODULES.get(name, [((), {}, (3, 4))]):
        theirs = getattr(torch.nn, name)(*args, **kwargs)
        ours = getattr(nbt.nn, name)(*args, **kwargs)
        assert list(ours.state_dict()) == list(theirs.state_dict()) and isinstance(ours, type(theirs))
        ours.load_state_dict(theirs.state_dict())
        x = torch.randn(shape)
        before = x.clone()
        y = ours(x)
        assert torch.equal(x, before)
        torch.testing.assert_close(y, theirs(x.clone()), rtol=1e-4, atol=1e-5)
        if list(ours.parameters()):
            y.square().sum().backward()
            theirs(x).square().sum().backward()
            for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-4)


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
    assert len(code) == 3
    exec(compile("\n".join(code), str(PAGE), "exec"), {"__name__": "page"})
