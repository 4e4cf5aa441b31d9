"""FusionPlan: what is refused, in which words, and that nothing has been written by then."""

import re

import numpy as np
import pytest
from fusion_plan_cases import F32, behind, complete, real, small

import numbaprims
from numbaprims.fusion.layers import Activation

# ---------------------------------------------------------------- refusals


def with_bytes(*kinds):
    plan = small(dtype="int8")
    plan.conv((3, 4, 3, 3))
    for kind in kinds:
        plan.cast("int8") if kind == "cast" else plan.activation(kind) if kind == "tanh" else getattr(plan, kind)()
    return plan


REFUSALS = {
    "two convolutions in one call": (
        lambda: behind(lambda plan: plan.conv((3, 3, 1, 1))), 1,
        "conv (operator 2) cannot join: conv does not stand behind conv; conv begins another call, and one call is "
        "allowed; on cuda each call is a launch",
    ),
    "a batch norm before padding in one call": (
        lambda: (plan := small()).batch_norm() and plan.conv((3, 4, 3, 3), padding=1) and plan, 1,
        "conv (operator 2) cannot join: conv takes no padding behind what is folded in front, which it does not pass, "
        "and it is padded by ((1, 1), (1, 1)); stack takes no conv; conv begins another call",
    ),
    "a softmax of integers": (
        lambda: (plan := small(dtype="int8")).softmax() and plan, None,
        "softmax (operator 1) cannot join: softmax takes x of float64",
    ),
    "glu": (
        lambda: behind(lambda plan: plan.activation("glu", axis=1)), None,
        "conv.activation takes an activation of one element and a few numbers, and glu is none; "
        "stack.activation takes an activation that keeps the shape, and it is glu",
    ),
    "a narrower result": (
        lambda: behind(lambda plan: plan.cast("float16")), None,
        "cast (operator 2) cannot join: conv.cast takes the dtype of its sums, and float32 to float16",
    ),
    "a cast alone": (
        lambda: (plan := small()).cast("float16") and plan, None, "cast (operator 1) cannot join: nothing takes a cast",
    ),
    "tanh of integers": (
        lambda: with_bytes("bias", "tanh"), None,
        "activation (operator 3) cannot join: conv.activation takes relu where sums are integers, and tanh of int32",
    ),
    "scaled integers": (
        lambda: with_bytes("bias", "scale"), None,
        "scale (operator 3) cannot be the last one: qlinear_conv.scale wants more behind it",
    ),
    "a bias of scaled integers": (
        lambda: with_bytes("scale", "bias", "cast"), None,
        "bias (operator 3) cannot join: qlinear_conv.bias does not stand behind qlinear_conv.scale",
    ),
    "per activation in one call": (
        lambda: behind(lambda plan: plan.batch_norm(mode="per_activation")), 1,
        "batch_norm (operator 2) cannot join: conv.batch_norm takes one value a channel, and mode is 'per_activation'",
    ),
    "fold=False in one call": (
        lambda: behind(lambda plan: plan.batch_norm(fold=False)), 1,
        "batch_norm (operator 2) cannot join: conv.batch_norm takes leave to fold, and fold is False",
    ),
    "training in one call": (
        lambda: behind(lambda plan: plan.batch_norm(training=True)), 1,
        "batch_norm (operator 2) cannot join: conv.batch_norm takes given statistics, and training is True",
    ),
    "pooling in one call": (
        lambda: behind(lambda plan: plan.pool("max", 2)), 1,
        "pool (operator 2) cannot join: conv takes no pool; stack.pool begins another call, and one call is allowed",
    ),
    "an activation before a sum": (
        lambda: behind(lambda plan: plan.activation("relu"), lambda plan: plan.add()), 1,
        "add (operator 3) cannot join: conv.add does not stand behind conv.activation",
    ),
    "nothing": (small, None, "the plan has no operator"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_in_words(name):
    make, most, words = REFUSALS[name]
    plan = make()
    with numbaprims.config(device="cuda" if most else "cpu"):  # the CPU joins what is several calls
        assert plan.compile(calls=most) is False
        with pytest.raises(ValueError, match=re.escape(plan.reason)):
            plan.compile(strict=True, calls=most)
    if most:
        other = make()
        assert other.compile(calls=1) and other.launches == 1 and not other.compile(calls=0)
    assert words in plan.reason and plan.explain() == plan.reason
    assert not re.search(r"gemm\.|stands behind start", plan.reason), "words about what is not near"
    with pytest.raises(ValueError, match="the plan is not compiled"):
        plan(np.zeros((2, 4, 6, 6), np.float32))


@pytest.mark.parametrize("shape", [None, 5, "ab", (1.0, 2, 4, 4)])
def test_shapes_that_are_none(shape):
    makers = (
        (numbaprims.FusionPlan, "x_shape"), (lambda given: numbaprims.fuse([Activation("relu")], given), "input_shape"),
        (lambda given: numbaprims.conv.plan(given, np.ones((1, 2, 1, 1), np.float32)), "x_shape"),
    )  # fmt: skip
    for make, name in makers:
        with pytest.raises(TypeError, match=rf"^{name} is .*; it must be (a sequence|made) of integers"):
            make(shape)


def test_three_sums_are_two_passes():
    rng = np.random.default_rng(7)
    plan, x = small(), real(rng, 2, 4, 6, 6)
    for _ in range(3):
        plan.set_args(plan.add(), added=x)
    assert plan.compile(calls=1) and "1 native call of 2 programs" in plan.explain()
    assert "at most two arrays that are added, and it is the third" in plan.explain()
    np.testing.assert_allclose(plan(x), 4 * x, rtol=1e-6)


@pytest.mark.parametrize("make, words", [
    (lambda plan: plan.conv((3, 5, 3, 3)), "conv (operator 1): x has 4 channels"),
    (lambda plan: plan.conv((3, 4, 9, 9)), "conv (operator 1): x is (6, 6) large"),
    (lambda plan: plan.gemm((3, 4)), "gemm (operator 1): x has shape"),
    (lambda plan: plan.gemm(None), "gemm (operator 1): weight_shape is None; it must be a sequence of integers"),
    (lambda plan: plan.conv((3, 4, 3.0, 3)), "conv (operator 1): weight_shape is (3, 4, 3.0, 3); it must be made of"),
    (lambda plan: plan.softmax(axis=4), "softmax (operator 1): axis is 4; x (2, 4, 6, 6) has -4 to 3"),
    (lambda plan: plan.softmax(axis=True), "softmax (operator 1): axis is True; it must be an integer"),
    (lambda plan: plan.batch_norm(eps="x"), "batch_norm (operator 1): eps is 'x'; it must be a real number"),
    (lambda plan: plan.pool("min", 3), "pool (operator 1): op is 'min'"),
    (lambda plan: plan.pool("max", 3, padding=2), "pool (operator 1): padding is 2; it may be half a window"),
    (lambda plan: plan.pool("max", 7), "pool (operator 1): a window of (7, 7) slides over (6, 6)"),
    (lambda plan: plan.batch_norm(mode="other"), "batch_norm (operator 1): mode is 'other'"),
    (lambda plan: plan.activation("other"), "activation (operator 1): kind is 'other'"),
    (lambda plan: plan.activation("elu", beta=1), "activation (operator 1): elu got 'beta'"),
    (lambda plan: plan.activation("prelu", weight=1), "activation (operator 1): prelu takes its weight by set_args"),
    (lambda plan: plan.cast("float8"), "cast (operator 1): dtype is 'float8'"),
])  # fmt: skip
def test_operators_that_cannot_be(make, words):
    plan = small()
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        make(plan)
    assert plan.operators == ()


WRONG = {
    "another shape": (1, {"scale": np.ones(4, F32)}, ValueError, "batch_norm (operator 2): scale is a float32 array"),
    "another dtype": (1, {"scale": np.ones(3)}, TypeError, "batch_norm (operator 2): scale is a float64 array (3,)"),
    "no array": (0, {"weight": 1.0}, TypeError, "conv (operator 1): weight is a float"),
    "a list": (2, {"added": [1.0]}, TypeError, "add (operator 3): added is a list"),
    "no such name": (1, {"bias": np.ones(3, F32)}, TypeError, "batch_norm (operator 2) has no argument 'bias'"),
    "no number": (3, {"negative_slope": "x"}, TypeError, "activation (operator 4): negative_slope is 'x'"),
    "no real number": (3, {"negative_slope": 1 + 1j}, TypeError, "negative_slope is (1+1j); it must be a real number"),
    "an array for a number": (3, {"negative_slope": np.ones(3)}, TypeError, "negative_slope is array([1., 1., 1.])"),
    "one wrong of two": (1, {"mean": np.ones(3, F32), "var": np.ones(2, F32)}, ValueError, "var is a float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_change_nothing(name):
    at, values, error, words = WRONG[name]
    plan, operators, x = complete()
    before = plan(x)
    with pytest.raises(error, match=re.escape(words)):
        plan.set_args(operators[at], **values)
    np.testing.assert_array_equal(plan(x), before)


def test_handles_of_other_plans_are_refused():
    plan, operators, _ = complete()
    for stranger in complete()[1]:
        with pytest.raises(ValueError, match="is of another plan"):
            plan.set_args(stranger)
    with pytest.raises(TypeError, match="must be what a method of the plan gave"):
        plan.set_args("conv", weight=None)


@pytest.mark.parametrize("make, error, words", [
    (lambda x: {"x": x[1:]}, ValueError, "(1, 4, 6, 6); this plan takes float32 (2, 4, 6, 6) NCHW"),
    (lambda x: {"x": x.astype(np.float64)}, ValueError, "x is a float64 array"),
    (lambda x: {"x": x, "out": np.zeros((2, 3, 4, 5), F32)}, ValueError, "out is a float32 array (2, 3, 4, 5)"),
    (lambda x: {"x": x, "out": np.zeros((2, 3, 4, 4))}, TypeError, "out is a float64 array"),
])  # fmt: skip
def test_wrong_runs_write_nothing(make, error, words):
    plan, _, x = complete()
    given = make(x)
    with pytest.raises(error, match=re.escape(words)):
        plan(**given)
    assert not np.any(given.get("out", 0))


@pytest.mark.parametrize("dtype, zero, error, words", [
    ("uint8", 1.5, TypeError, "1.5; a zero point is an integer"),
    ("uint8", 300, ValueError, "300; it must lie in 0 ... 255, the range of uint8"),
    ("int8", -129, ValueError, "-129; it must lie in -128 ... 127, the range of int8"),
])  # fmt: skip
def test_zero_points_that_cannot_be(dtype, zero, error, words):
    plan = small(dtype="int8")
    conv, scale, cast = plan.conv((3, 4, 3, 3)), plan.scale(), plan.cast(dtype)
    assert plan.compile()
    plan.set_args(conv, weight=np.ones((3, 4, 3, 3), np.int8))
    plan.set_args(scale, scale=np.ones(3, F32))
    plan.set_args(cast, scale=0.5, zero_point=zero)
    x = np.ones((2, 4, 6, 6), np.int8)
    with pytest.raises(error, match=re.escape(f"cast (operator 3): zero_point is {words}")):
        plan(x)
    plan.set_args(cast, zero_point=np.int64(3))
    assert plan(x).ravel()[0] == 3 + 72


@pytest.mark.parametrize("scale", [None, 1 + 1j])
def test_scales_that_cannot_be(scale):
    plan = small(dtype="int8")
    plan.conv((3, 4, 3, 3)), plan.scale()
    with pytest.raises(TypeError, match=re.escape(f"cast (operator 3): scale is {scale}; it must be a real number")):
        plan.set_args(plan.cast("int8"), scale=scale)


def test_calls_that_are_no_number():
    plan, *_ = complete()
    with pytest.raises(TypeError, match="calls is 'a'; it must be an integer"):
        plan.compile(calls="a")


def test_missing_arguments_are_named():
    plan = small()
    conv = plan.conv((3, 4, 3, 3))
    plan.batch_norm()
    assert plan.compile()
    out = np.zeros((2, 3, 4, 4), F32)
    with pytest.raises(ValueError, match=re.escape("conv (operator 1): weight not set")):
        plan(np.ones((2, 4, 6, 6), F32), out=out)
    plan.set_args(conv, weight=np.ones((3, 4, 3, 3), F32))
    with pytest.raises(ValueError, match=re.escape("batch_norm (operator 2): scale, shift, mean, var not set")):
        plan(np.ones((2, 4, 6, 6), F32), out=out)
    assert not out.any()


def test_an_added_operator_asks_for_compile_again():
    plan, _, x = complete()
    plan.activation("tanh")
    with pytest.raises(ValueError, match="the plan is not compiled"):
        plan(x)
    before = complete()[0](x)
    assert plan.compile() and len(plan._calls) == 2
    np.testing.assert_allclose(plan(x), np.tanh(before), rtol=1e-5)
