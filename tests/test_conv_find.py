"""Stored convolutions: the calls that pose them, and `conv.find`."""

import numpy as np
import pytest
from conv_cases import CASES, DIRECTIONS, FUNCTIONS, arguments, operand_layouts, to_layout
from helpers import lay_out

import numbaprims
from numbaprims import settings
from numbaprims.dispatch import choose, examples
from numbaprims.dispatch.explain import problem_of
from numbaprims.tuning import records


def posed_again(problem):
    """The problem that the example of a stored one poses."""
    wanted = records.dump(records.fields_of(problem))
    stored = records.stored(type(problem), records.fields_of(problem))
    with settings.trial(choose.Trial("conv", wanted)):
        try:
            examples.example_call("conv", stored)()
        except choose.Posed as posed:
            return posed.problem
    raise AssertionError(f"not posed again: {problem}")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_examples_pose_their_problem(direction):
    for case in CASES:
        for layout in ("NCHW", "NHWC"):
            more, window = arguments(case, direction, layout)
            first, second = (
                to_layout(np.zeros(shape, np.float32), of)
                for shape, of in zip(case.operand_shapes(direction), operand_layouts(direction, layout), strict=True)
            )
            for ending in ({}, {"alpha": 3.0}):
                problem = problem_of(FUNCTIONS[direction], first, second, *more, **window, **ending)
                assert posed_again(problem).key() == problem.key(), f"{case} {layout}"


def test_examples_of_other_orders_endings_and_types():
    x, w = np.zeros((2, 4, 6, 7), np.float32), np.zeros((6, 4, 3, 3), np.float32)
    bias, out = np.zeros(6, np.float32), np.zeros((2, 6, 4, 5), np.float32)
    tall = np.zeros((2, 4, 3, 7, 8), np.float16)
    for name, args, kwargs in (
        ("conv", (x, w, bias), {"activation": "gelu", "c": out, "beta": 1.0}),
        ("conv", (lay_out(x, "sliced"), lay_out(w, "negative")), {"out": lay_out(out, "padded")}),
        ("conv", (lay_out(x, "padded"), w), {}),
        ("conv", (x.astype(np.float16), w.astype(np.float16)), {"out_dtype": "f32"}),
        ("conv", (x.astype(np.int8), w.astype(np.int8), bias.astype(np.int32)), {"activation": "relu"}),
        ("conv", (tall, tall[:, :, :2, :3, :3].copy()), {"stride": (1, 2, 1)}),
        ("conv_transpose", (x, w[:4].repeat(1, 0), bias[:4]), {"stride": 3, "output_padding": 2, "padding": 1}),
        ("conv_transpose", (x, w[:4], None), {"stride": 2, "activation": "relu", "dilation": 3}),
        ("conv_integer", (x.astype(np.uint8), w.astype(np.int8)), {"x_zero_point": 7}),
        ("conv_integer", (x.astype(np.int8), w.astype(np.int8)), {"weight_zero_point": [1, 2, 3, 4, 5, 6]}),
        ("qlinear_conv", (x.astype(np.int8), 1.0, 2, w.astype(np.int8), 1.0, 3, 2.0, np.uint8(3)), {"padding": 1}),
        ("qlinear_conv", (x.astype(np.int8), 1.0, 0, w.astype(np.int8), 1.0, 0, 2.0, np.int8(0)), {"layout": "NCHW"}),
        ("conv_backward_bias", (x,), {}),
        ("conv_backward_bias", (x,), {"layout": "NHWC"}),
    ):
        problem = problem_of(name, *args, **kwargs)
        assert posed_again(problem).key() == problem.key(), (name, kwargs)


def test_plans_are_found_too(tmp_path):
    """A plan's problem is one of its own: its solvers do not pay for the weights."""
    x, w = np.ones((1, 8, 12, 12), np.float32), np.ones((8, 8, 3, 3), np.float32)
    plan = numbaprims.conv.plan(x.shape, w, padding=1, bias=np.ones(8, np.float32))
    plan(x)
    (known,) = plan._bound.values()
    problem = known[0].problem
    assert problem.prepared
    assert posed_again(problem).key() == problem.key()
    found = numbaprims.find(problem, store=False)
    assert found.best.measured and found.best.seconds < 1.0
    assert {f.algorithm for f in found} >= {"naive"}


def test_plans_are_held_to_the_definition():
    """With device="reference" a plan computes by it: a check of prepared weights is none of a solver with itself."""
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((2, 40, 9, 9)).astype(np.float32), rng.standard_normal((8, 40, 3, 3)).astype(np.float32)
    bias, a = rng.standard_normal(8).astype(np.float32), rng.standard_normal((5, 9)).astype(np.float32)
    plan = numbaprims.conv.plan(x.shape, w, padding=1, bias=bias, activation="relu")
    product = numbaprims.gemm.plan(w[0, 0], trans_b=True, alpha=0.3, bias=w[0, 0, 0])
    with numbaprims.config(device="reference"):
        by_definition = numbaprims.conv(x, w, bias, padding=1, activation="relu")
        out = np.empty_like(by_definition)
        assert plan(x, out=out) is out and np.array_equal(out, by_definition) and np.array_equal(plan(x), out)
        # its result lies as x does, and is written by shape and strides
        last = np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)
        y = plan(last)
        assert y.strides[1] == 4 and np.array_equal(y, by_definition)
        again = numbaprims.gemm(a[:, :3], w[0, 0], trans_b=True, alpha=0.3, bias=w[0, 0, 0])
        assert np.array_equal(product(a[:, :3]), again)
    assert not np.array_equal(plan(x), by_definition), "kernels round"
    problem = next(iter(plan._bound.values()))[0].problem
    found = numbaprims.find(problem, store=False, check=True)
    assert all(f.error > 0 and not f.wrong for f in found if f.measured)


def test_conv_find():
    x, w = np.ones((1, 4, 9, 9), np.float32), np.ones((4, 4, 3, 3), np.float32)
    found = numbaprims.conv.find(x, w, padding=1, store=False, check=True)
    assert [f.seconds for f in found] == sorted(f.seconds for f in found)
    assert all(f.error is not None and f.error < 1e-4 for f in found if f.measured)


def test_empty_problems_are_explained():
    """Nothing of them is run; without channels the result is zero, by definition too."""
    x, w, dy = (np.empty(shape, np.float32) for shape in ((0, 3, 8, 8), (4, 3, 3, 3), (0, 4, 6, 6)))
    numbaprims.explain("conv", x, w)
    numbaprims.explain("conv_backward_data", dy, w, x.shape)
    numbaprims.explain("conv_backward_bias", np.empty((3, 0, 6, 6), np.float32))
    for device in ("auto", "reference"):
        with numbaprims.config(device=device):
            y = numbaprims.conv(np.empty((2, 0, 8, 8), np.float32), np.empty((4, 0, 3, 3), np.float32))
        np.testing.assert_array_equal(y, np.zeros((2, 4, 6, 6)))
