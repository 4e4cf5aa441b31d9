"""reduce for torch: values and gradients are those of torch's functions."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from numbaprims.frontends import torch as nbt  # noqa: E402
from numbaprims.ops.reduce import REDUCTIONS  # noqa: E402


@pytest.mark.parametrize("op", [op for op, known in REDUCTIONS.items() if not known.gives])
@pytest.mark.parametrize("words", [{"axis": 1}, {"axis": (0, 2), "keepdims": True}, {}, {"axis": 0, "nan": "omit"}])
def test_gradients_are_those_of_differences(op, words):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 4, 2)))
    x = (x.abs() if op == "log_sum" else x).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: nbt.reduce(x, op, **words), (x,))


@pytest.mark.parametrize("op", [op for op, known in REDUCTIONS.items() if not known.gives and op != "std"])
@pytest.mark.parametrize("words", [{}, {"keepdims": True, "nan": "omit"}])
def test_gradients_where_no_axis_is_reduced(op, words):
    x = (torch.rand(2, 3, dtype=torch.float64) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: nbt.reduce(x, op, (), **words), (x,))


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "min", "max", "pow", "mod", "fmod", "atan2"])
def test_binary(op):
    a, b, c = (torch.rand(shape, dtype=torch.float64) + 0.5 for shape in ((3, 4), (4,), (3, 1)))
    given = [x.requires_grad_() for x in (a, b, c)]
    assert torch.autograd.gradcheck(lambda a, b, c: nbt.binary(a, b, op, alpha1=2.0, c=c, beta=0.5), given)
    assert torch.autograd.gradcheck(lambda a, b: nbt.binary(a, b, op), given[:2])


def test_elements():
    a, b = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    where = torch.rand(3, 1) < 0.5
    assert torch.autograd.gradcheck(lambda a, b: nbt.where(where, a, b), (a, b))
    assert torch.autograd.gradcheck(lambda a: nbt.scale(a, 3.0), (a,))
    assert torch.autograd.gradcheck(lambda a: nbt.cast(nbt.cast(a, "float64"), torch.float64), (a,))


def test_what_has_no_gradient():
    assert not nbt.binary(torch.randn(3, requires_grad=True), torch.randn(3), "less").requires_grad
    assert not nbt.cast(torch.randn(3, requires_grad=True), "int32").requires_grad
    x = torch.randn(3, 4, requires_grad=True)
    assert torch.equal(nbt.reduce(x, "argmax", 1), x.argmax(1))
    assert not nbt.reduce(x, "any").requires_grad
