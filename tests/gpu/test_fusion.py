"""Fused networks and plans of arrays in a GPU's memory: where their parameters and their concatenations lie."""

import numpy as np
import pytest
from fusion_cases import RELU, array, conv, norm

import numbaprims
from numbaprims.fusion.layers import (
    Add,
    Concat,
    Constant,
    Gather,
    Given,
    GroupNorm,
    LayerNorm,
    Linear,
    MaskedAttention,
    MaxPool,
    Permute,
    PReLU,
    Reshape,
    Residual,
    SelfAttention,
    View,
    Wired,
)
from numbaprims.gpu import memory


def test_networks_of_device_arrays(gpu):
    for layers, shape, layout in [
        ([conv(4, 3), norm(4), RELU, Concat([[conv(2, 4)], [MaxPool(3, 1, 1)], ()])], (1, 3, 6, 5), "NCHW"),
        ([Linear(array(4, 3)), norm(4), RELU, PReLU(array(4))], (2, 3), "NCHW"),
        ([norm(3)], (2, 4, 4, 3), "NHWC"),
        (
            [Residual([LayerNorm(array(8)), Linear(array(24, 8)), SelfAttention(heads=2)]), Gather([2, 0])],
            (2, 3, 8),
            "NCHW",
        ),
        (
            [conv(4, 3), Permute((0, 2, 3, 1)), GroupNorm(3), Reshape((-1,)), View((5, 2), (2, 7), 3)],
            (1, 3, 6, 5),
            "NCHW",
        ),
        (Wired([(Constant(array(3, 4)), (0,)), (Add(), (0, 1)), (RELU, (2,))]), (2, 3, 4), "NCHW"),
    ]:
        net = numbaprims.fuse(layers, shape, layout=layout)
        x = array(*shape)
        y = net(memory.to_device(x))
        assert isinstance(y, memory.DeviceArray)
        np.testing.assert_allclose(memory.to_host(y), net.run_reference(x), rtol=1e-5, atol=1e-5)


def test_networks_that_are_given_more(gpu):
    """A mask of each call beside queries, a concatenation of rows, and two results."""
    q, added = array(2, 3, 5, 4), array(1, 1, 5, 5)
    steps = [(Given(added.shape), ()), (MaskedAttention(), (0, 0, 0, 1)), (Concat([RELU, []], 2), (2, 0))]
    net = numbaprims.fuse(Wired(steps, results=(3, 2)), q.shape)
    for mask in (added, added > -0.5):
        found = net(memory.to_device(q), memory.to_device(mask))
        for y, want in zip(found, net(q, mask), strict=True):
            assert isinstance(y, memory.DeviceArray)
            np.testing.assert_allclose(memory.to_host(y), want, rtol=1e-5, atol=1e-5)


def plan_of(kind, dtype=np.float32):
    """A plan, and those of its operators that take arguments."""
    plan = numbaprims.FusionPlan((2, 3, 6, 5) if kind != "product" else (5, 6), dtype)
    if kind == "folded":
        conv, bias, norm = plan.conv((4, 3, 3, 3), padding=1), plan.bias(), plan.batch_norm()
        plan.activation("relu")
        return plan, (conv, bias, norm)
    if kind == "front":
        return plan, (plan.batch_norm(), plan.conv((4, 3, 2, 2)), plan.scale())
    if kind == "product":
        return plan, (plan.scale(), plan.gemm((4, 6)), plan.bias())
    if kind == "each":
        return plan, (plan.conv((4, 3, 3, 3)), plan.batch_norm(mode="per_activation"))
    return plan, (plan.batch_norm(), plan.add(), plan.pool("max", 2))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", ["folded", "front", "product", "each", "pass"])
def test_plans_fold_parameters_of_the_device(gpu, kind, dtype, monkeypatch):
    """Through the host when all are set, and not at a run; what is set is the plan's own."""
    rng = np.random.default_rng(3)
    (plan, operators), (host, others) = plan_of(kind, dtype), plan_of(kind, dtype)
    x, given = array(*plan._x.shape).astype(dtype), []
    for operator, other in zip(operators, others, strict=True):
        values = {name: (rng.random(each.shape) + 0.5).astype(dtype) for name, each in operator.arguments.items()}
        there = {name: memory.to_device(value) for name, value in values.items()}
        given += [each for name, each in there.items() if name != "added"]
        plan.set_args(operator, **there)
        host.set_args(other, **values)
    assert plan.compile() and host.compile() and plan.launches == len(plan._calls)
    for each in given:
        each.set(np.zeros(each.shape, dtype))
    x_there = memory.to_device(x)
    monkeypatch.setattr(memory, "read", lambda view: pytest.fail("a run reads parameters"))
    monkeypatch.setattr(memory, "write", lambda view, data: pytest.fail("a run writes parameters"))
    y = plan(x_there)
    assert isinstance(y, memory.DeviceArray) and y.dtype == dtype
    tolerance = 1e-5 if dtype == np.float32 else 4e-3
    np.testing.assert_allclose(memory.to_host(y), host(x), rtol=tolerance, atol=tolerance)
    if len(plan._calls) > 1:
        assert not plan.compile(calls=1) and ":0 each call is a launch" in plan.reason


def test_integers_of_the_device(gpu, monkeypatch):
    """int8 with scales and zero points, whose table lies on the device before the first run, and ONNX's own calls."""
    rng = np.random.default_rng(6)
    x, weight = rng.integers(0, 100, (1, 4, 6, 5)).astype(np.uint8), rng.integers(-99, 99, (6, 4, 3, 3)).astype(np.int8)
    bias, scale = rng.integers(-999, 999, 6, np.int32), (rng.random(6) * 1e-3 + 1e-3).astype(np.float32)
    want = numbaprims.qlinear_conv(x, 1.0, 3, weight, scale, -2, 0.25, np.int8(12), bias, padding=1)
    sums = numbaprims.conv_integer(x, weight, x_zero_point=3, weight_zero_point=-2, padding=1)
    assert len(np.unique(want)) > 20
    there = {name: memory.to_device(each) for name, each in (("x", x), ("w", weight), ("b", bias), ("s", scale))}
    found = numbaprims.qlinear_conv(
        there["x"], 1.0, 3, there["w"], scale, -2, 0.25, np.int8(12), there["b"], padding=1
    )  # fmt: skip
    np.testing.assert_array_equal(memory.to_host(found), want)
    found = numbaprims.conv_integer(there["x"], there["w"], x_zero_point=3, weight_zero_point=-2, padding=1)
    np.testing.assert_array_equal(memory.to_host(found), sums)
    plan = numbaprims.FusionPlan(x.shape, "uint8")
    conv, add, factor, cast = plan.conv(weight.shape, padding=1), plan.bias(), plan.scale(), plan.cast("int8")
    assert plan.compile()
    plan.set_args(conv, weight=there["w"], x_zero_point=3, weight_zero_point=-2)
    plan.set_args(add, bias=there["b"])
    plan.set_args(factor, scale=there["s"])
    plan.set_args(cast, scale=0.25, zero_point=12)
    monkeypatch.setattr(memory, "read", lambda view: pytest.fail("a run reads parameters"))
    monkeypatch.setattr(memory, "write", lambda view, data: pytest.fail("a run writes parameters"))
    for _ in range(2):
        np.testing.assert_array_equal(memory.to_host(plan(there["x"])), want)
    assert plan.launches == 1


def test_one_value_of_a_device_plan_is_folded_anew(gpu):
    plan, (conv, bias, norm) = plan_of("folded")
    rng = np.random.default_rng(4)
    for operator in (conv, bias, norm):
        shapes = {name: each.shape for name, each in operator.arguments.items()}
        plan.set_args(operator, **{n: memory.to_device(rng.random(s, np.float32) + 1) for n, s in shapes.items()})
    assert plan.compile()
    x = memory.to_device(array(2, 3, 6, 5))
    plan.set_args(norm, shift=memory.to_device(np.full(4, -1e6, np.float32)))
    assert not memory.to_host(plan(x)).any()
    with pytest.raises(TypeError, match="the plan's other arguments are numbaprims arrays"):
        plan.set_args(norm, shift=np.ones(4, np.float32))


def test_gradients_of_a_batch_norm_on_the_device(gpu):
    rng = np.random.default_rng(5)
    x, dy = array(3, 4, 5, 2), array(3, 4, 5, 2)
    scale, shift, mean, inv_std = (rng.random(4, np.float32) + np.float32(0.5) for _ in range(4))
    plan = numbaprims.FusionPlan(x.shape)
    plan.activation_backward("silu")
    norm = plan.batch_norm_backward()
    given = {"x": x, "scale": scale, "shift": shift, "saved_mean": mean, "saved_inv_std": inv_std}
    plan.set_args(norm, **{name: memory.to_device(each) for name, each in given.items()})
    assert plan.compile(calls=1)
    want = numbaprims.batch_norm_backward(dy, x, scale, mean, inv_std, shift, activation="silu")
    for have, each in zip(plan(memory.to_device(dy)), want, strict=True):
        np.testing.assert_allclose(memory.to_host(have), each, rtol=1e-4, atol=1e-5)
