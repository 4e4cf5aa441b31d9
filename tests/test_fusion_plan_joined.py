"""FusionPlan: gradients, and programs of several calls joined into one native call give the bits of the calls."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fusion_plan_cases import F32, MODES, real
from helpers import assert_close

import numbaprims
from numbaprims import FusionPlan
from numbaprims.cpu.conv.naive import Naive
from numbaprims.dispatch import registry


def depthwise_pointwise(plan, c):
    plan.conv((c, 1, 3, 3), padding=1, groups=c)
    plan.batch_norm()
    plan.activation("relu6")
    plan.conv((12, c, 1, 1))
    plan.bias()


def separable_chain(plan, c):
    depthwise_pointwise(plan, c)
    plan.activation("relu")
    plan.conv((6, 12, 3, 3), padding=1)
    plan.add()
    plan.activation("tanh")
    plan.add()


def per_activation(plan, c):
    plan.conv((6, c, 3, 3), padding=1)
    plan.bias()
    plan.batch_norm(mode="per_activation")
    plan.activation("relu")


#: name -> (adds operators to a plan of images, how many programs they are)
IMAGES = {
    "conv and pooling": (lambda plan, c: plan.conv((6, c, 3, 3)) and plan.pool("max", 2), 2),
    "CBNA per activation": (per_activation, 2),
    "depthwise and pointwise": (depthwise_pointwise, 2),
    "three convolutions and two sums": (separable_chain, 4),
    "training in front": (lambda plan, c: plan.batch_norm(training=True) and plan.conv((3, c, 3, 3)), 2),
    "a batch norm before padding": (lambda plan, c: plan.batch_norm() and plan.conv((3, c, 3, 3), padding=1), 2),
    "softmax before a convolution": (lambda plan, c: plan.softmax(axis=1) and plan.conv((3, c, 2, 2)), 2),
    "a wide filter of few channels": (lambda plan, c: plan.conv((2, c, 7, 7), padding=3) and plan.softmax(), 2),
}


def multilayer(plan, k):
    plan.softmax()
    plan.gemm((5, k))
    plan.bias()
    plan.activation("gelu")
    plan.gemm((33, 5))
    plan.batch_norm(mode="per_activation")


def fill(plan, give=np.asarray):
    """Set arguments of a plan, and compile it."""
    rng = np.random.default_rng(1)
    kinds = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i8": np.int8, "i32": np.int32}
    for operator in plan.operators:
        values = {}
        for name, argument in operator.arguments.items():
            if argument.dtypes:
                dtype = kinds[argument.dtypes[0]]
                drawn = rng.random(argument.shape) + 0.5 if dtype not in (np.int8, np.int32) else None
                drawn = rng.integers(-9, 9, argument.shape) if drawn is None else drawn
                values[name] = give(drawn.astype(dtype))
            elif argument.needed:
                values[name] = 0.5
        plan.set_args(operator, **values)
    assert plan.compile(calls=1) and plan.launches == 1
    return plan


def apart(plan, x, out=None):
    bound = plan._bind()
    return plan._apart(bound.runs, bound.arguments, x, out)


def check_joined(plan, x, programs):
    assert len(plan._calls) == programs
    for _ in range(2):
        have, want = plan(x), apart(plan, x)
        assert plan._bind().joined.why == ""
        have, want = (each if isinstance(each, tuple) else (each,) for each in (have, want))
        for a, b in zip(have, want, strict=True):
            assert type(a) is type(b) and a.dtype == b.dtype
            strides = [each.strides if isinstance(each, np.ndarray) else each.stride() for each in (a, b)]
            assert strides[0] == strides[1]
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    y = np.asarray(want[0])
    assert y.size > 1 and np.isfinite(y.astype(np.float64)).all() and (y != y.flat[0]).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("name", IMAGES)
def test_programs_of_images(name, dtype):
    make, programs = IMAGES[name]
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for lies in ("plain", "strided", "torch", "channels_last"):
        plan = FusionPlan((2, 8, 10, 9), dtype)
        make(plan, 8)
        x = rng.standard_normal((2, 8, 10, 18)).astype(dtype)[..., ::2]
        give = np.asarray
        if lies == "plain":
            x = np.ascontiguousarray(x)
        elif lies != "strided":
            give, x = torch.from_numpy, torch.from_numpy(np.ascontiguousarray(x))
            x = x.to(memory_format=torch.channels_last) if lies == "channels_last" else x
        check_joined(fill(plan, give), x, programs)


@pytest.mark.parametrize("strided", [False, True])
def test_programs_of_rows_and_lines(strided):
    rng = np.random.default_rng(0)
    plan, wide = FusionPlan((7, 20)), real(rng, 7, 40)
    multilayer(plan, 20)
    check_joined(fill(plan), wide[:, ::2] if strided else wide[:, :20].copy(), 4)
    lines = FusionPlan((2, 8, 30))
    lines.conv((8, 8, 3))
    lines.batch_norm(mode="per_activation")
    lines.conv((8, 8, 3))
    check_joined(fill(lines), real(rng, 2, 8, 60)[..., 1::2] if strided else real(rng, 2, 8, 30), 3)


def test_programs_of_integers():
    plan = FusionPlan((2, 8, 9, 9), "uint8")
    for channels, kind in ((8, "uint8"), (6, "int8")):
        plan.conv((6, channels, 3, 3), padding=1)
        plan.scale()
        plan.cast(kind)
    plan.conv((4, 6, 2, 2))
    plan.activation("relu")
    check_joined(fill(plan), np.random.default_rng(0).integers(0, 99, (2, 8, 9, 9)).astype(np.uint8), 3)


def test_out_of_any_kind():
    """Of each way to lie a program of its own, which a result that is made has in common with an `out` that lies so; an
    `out` that is x or what is added is written by calls."""
    rng = np.random.default_rng(2)
    plan = FusionPlan((2, 6, 8, 8))
    separable_chain(plan, 6)
    fill(plan)
    x = real(rng, 2, 6, 8, 8)
    want = plan(x)
    wide = np.zeros((2, 6, 8, 16), F32)
    for out in (np.empty_like(want), wide[..., ::2], np.empty((2, 8, 8, 6), F32).transpose(0, 3, 1, 2)):
        assert plan(x, out=out) is out
        np.testing.assert_array_equal(out, apart(plan, x, np.empty_like(out)))
    assert not wide[..., 1::2].any() and len(plan._bind().joined._kinds) == 3
    added = plan._arguments[plan.operators[-1]]["added"]
    with pytest.raises(ValueError, match="shares memory"):
        plan(x, out=added)
    same = x.copy()
    assert plan(same, out=same) is same
    np.testing.assert_allclose(same, want, rtol=1e-5, atol=1e-5)


def test_what_is_added_is_read_at_each_run():
    """Also where it is x itself, or twice the same array."""
    plan = FusionPlan((2, 6, 8, 8))
    adds = [plan.add(), plan.add(), plan.add()]
    x, other = real(np.random.default_rng(3), 2, 6, 8, 8), np.ones((2, 6, 8, 8), F32)
    for given in ((x, x, x), (other, other, other), (x, other, x)):
        for operator, array in zip(adds, given, strict=True):
            plan.set_args(operator, added=array)
        assert plan.compile(calls=1)
        np.testing.assert_allclose(plan(x), x + sum(given), rtol=1e-5, atol=1e-6)
        other[:] += 1
        np.testing.assert_allclose(plan(x), x + sum(given), rtol=1e-5, atol=1e-6)


def test_scratch_memory_is_shared_by_what_is_not_alive_together():
    """The first and the third intermediate result have one place; the arena is smaller than all three."""
    plan = FusionPlan((1, 8, 16, 16))
    for _ in range(4):
        plan.conv((8, 8, 1, 1))
        plan.activation("relu")
    fill(plan)
    phases = plan.explain(phases=True)
    one = 4 * 8 * 16 * 16
    shared = int(re.search(r"scratch: (\d+) bytes shared", phases)[1])
    assert 2 * one <= shared < 3 * one and "1 native call of 4 programs" in phases
    assert plan.bytes_moved == sum(2 * one + 4 * 64 for _ in range(4))


def test_a_batch_norm_in_front_is_folded_where_that_is_exact():
    rng = np.random.default_rng(4)
    s = {name: rng.random(8).astype(F32) + F32(0.5) for name in ("scale", "shift", "mean", "var")}
    x, weight, bias = real(rng, 2, 8, 6, 6), real(rng, 6, 4, 3, 3), real(rng, 6)
    for padding, programs in ((0, 1), (1, 2)):
        plan = FusionPlan(x.shape)
        plan.set_args(plan.batch_norm(), **s)
        plan.set_args(plan.bias(), bias=s["var"])
        plan.set_args(plan.conv(weight.shape, padding=padding, groups=2), weight=weight)
        plan.set_args(plan.bias(), bias=bias)
        after = {name: value[:6] for name, value in s.items()}
        plan.set_args(plan.batch_norm(), **after)
        assert plan.compile() and len(plan._calls) == programs
        exact = [each.astype(np.float64) for each in (x, weight, bias)]
        front, behind = ([s_[n].astype(np.float64) for n in ("scale", "shift", "mean", "var")] for s_ in (s, after))
        y = numbaprims.batch_norm(exact[0], *front) + s["var"].reshape(-1, 1, 1)
        y = numbaprims.batch_norm(numbaprims.conv(y, exact[1], exact[2], padding=padding, groups=2), *behind)
        assert_close(plan(x), y, k=200)
    rows, matrix = real(rng, 5, 8), real(rng, 3, 8)
    plan = FusionPlan(rows.shape)
    plan.set_args(plan.batch_norm(), **s)
    plan.set_args(plan.gemm(matrix.shape), weight=matrix)
    assert plan.compile() and len(plan._calls) == 1 and "folded into the weight and the bias" in plan.explain()
    want = numbaprims.batch_norm(rows.astype(np.float64), *front) @ matrix.T.astype(np.float64)
    assert_close(plan(rows), want, k=100)


def test_threads_share_programs():
    plan, rng = FusionPlan((2, 6, 8, 8)), np.random.default_rng(6)
    separable_chain(plan, 6)
    fill(plan)
    inputs = [real(rng, 2, 6, 8, 8) for _ in range(4)]
    wanted = [plan(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for k, y in enumerate(pool.map(plan, inputs * 25)):
            np.testing.assert_array_equal(y, wanted[k % 4])


def test_what_cannot_be_joined_says_so():
    """A solver of the user's that launches what it likes."""

    class Opaque(Naive):
        name = "opaque"

        def estimate(self, problem, target):
            return 0.0

        def bind(self, problem, target, config):
            launch = super().bind(problem, target, config)
            return lambda *given, **words: launch(*given, **words)

    plan = FusionPlan((1, 3, 6, 6))
    plan.conv((4, 3, 3, 3))
    plan.pool("max", 2)
    x = real(np.random.default_rng(5), 1, 3, 6, 6)
    want = fill(plan)(x)
    registry.register("conv", Opaque())
    try:
        plan.compile()
        np.testing.assert_allclose(plan(x), want, rtol=1e-5)
        assert plan.launches == 2 and plan._bind().joined.why == "a solver runs no program"
        assert "calls are not joined: a solver runs no program" in plan.explain()
        assert not plan.compile(calls=1)
    finally:
        registry.unregister("conv", "opaque")


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients_of_a_batch_norm_and_its_activation(layout, mode):
    """In one call; x and what was saved are those of the moment, not those that were set first."""
    rng, channels = np.random.default_rng(7), 3 if layout == "NCHW" else 5
    shape = (channels,) if mode == "spatial" else (1, 3, 4, 5)
    scale, shift = (rng.random(shape).astype(F32) + F32(0.5) for _ in range(2))
    plan = FusionPlan((6, 3, 4, 5), layout=layout)
    plan.activation_backward("leaky_relu", negative_slope=0.25)
    norm = plan.batch_norm_backward(mode=mode)
    assert plan.compile(calls=1) and len(plan._calls) == 1 and plan.launches_saved == 1
    words = {"mode": mode, "layout": layout, "activation": ("leaky_relu", {"negative_slope": 0.25})}
    x = real(rng, 6, 3, 4, 5)
    _, mean, inv_std = numbaprims.batch_norm_train(x, scale, shift, **words)
    plan.set_args(norm, x=x, scale=scale, saved_mean=mean, saved_inv_std=inv_std)
    dy = real(rng, 6, 3, 4, 5)
    with pytest.raises(ValueError, match=re.escape("batch_norm_backward (operator 2): shift not set")):
        plan(dy)
    plan.set_args(norm, shift=shift)
    for step in range(2):
        x[...] = real(rng, 6, 3, 4, 5)
        _, mean[...], inv_std[...] = numbaprims.batch_norm_train(x, scale, shift, **words)
        want = numbaprims.batch_norm_backward(dy, x, scale, mean, inv_std, shift, **words)
        out = np.empty_like(dy)
        for have in (plan(dy), plan(dy, out=out)):
            for a, b in zip(have, want, strict=True):
                np.testing.assert_array_equal(a, b)
        assert have[0] is out and "batch_norm_backward, solver" in plan.explain(), step


def test_gradients_of_two_batch_norms_are_joined():
    rng = np.random.default_rng(8)
    plan, saved = FusionPlan((6, 3, 4, 5)), []
    for kind in ("silu", "relu"):
        plan.activation_backward(kind)
        x, scale, shift = real(rng, 6, 3, 4, 5), *(rng.random(3).astype(F32) + F32(0.5) for _ in range(2))
        _, mean, inv_std = numbaprims.batch_norm_train(x, scale, shift)
        saved.append((x, scale, mean, inv_std, shift))
        norm = plan.batch_norm_backward()
        plan.set_args(norm, x=x, scale=scale, saved_mean=mean, saved_inv_std=inv_std, shift=shift)
    assert plan.compile(calls=1) and len(plan._calls) == 2
    dy = real(rng, 6, 3, 4, 5)
    dx, *first = numbaprims.batch_norm_backward(dy, *saved[0], activation="silu")
    dx, *second = numbaprims.batch_norm_backward(dx, *saved[1], activation="relu")
    found = plan(dy)
    for have, want in zip(found, (dx, *first, *second), strict=True):
        np.testing.assert_array_equal(have, want)
    assert plan._bind().joined.why == ""


def test_what_is_behind_no_batch_norm_has_no_gradient_here():
    plan = FusionPlan((6, 3, 4, 5))
    plan.activation_backward("relu")
    assert not plan.compile() and "activation_backward (operator 1) cannot be the last one" in plan.reason
    with pytest.raises(TypeError, match=re.escape("activation_backward (operator 2): elu got 'beta'")):
        plan.activation_backward("elu", beta=1)
