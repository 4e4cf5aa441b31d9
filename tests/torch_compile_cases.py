"""Modules as torch.compile has them by `frontends.torch.backend`, and what that has to be, for the tests of it."""

import warnings

import pytest
import torch
from torch_fuse_cases import Made

from numbaprims.frontends import torch as nbt
from numbaprims.fusion import layers


@pytest.fixture(autouse=True)
def fresh():
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


class Given(Made):
    """A module of any number of inputs."""

    def forward(self, *inputs, **words):
        return self.function(self, *inputs, **words)
