"""Gradients of stacks: those of the layers one by one and of torch, by definition, and what is refused."""

import dataclasses

import numpy as np
import pytest
from helpers import forced, has_module, printed_with_threads
from test_stack import NORM, POOL, RELU, layers, parameters

import numbaprims
from numbaprims.dispatch.explain import problem_of
from numbaprims.ops.batch_norm import batch_norm_backward_fixed
from numbaprims.stacks.operations import Pointwise, Window, parse

ADD, PRELU = Pointwise("add"), Pointwise("prelu", 1)
HALVED = Window("avg", (2, 3), (2, 2), (0, 1), (0, 1), count_include_pad=False)


def image(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_bits_are_those_of_the_layers(layout):
    """dx of pooling, batch norm and ReLU; sums are added up in another order."""
    rng = np.random.default_rng(1)
    x, g = image(rng, 2, 18, 18, 18), image(rng, 2, 18, 18, 18)
    operations = [POOL, NORM, RELU]
    values = parameters(rng, 18, 2 * operations)
    dx, dparameters = numbaprims.stack_backward(g, x, 2 * operations, values, layout=layout)
    words = {"stride": 1, "padding": 1, "layout": layout}
    for at, given in ((3, layers(x, operations, values[:, :3], layout)), (0, x)):
        own = values[:, at : at + 3]
        mean, factor, _ = np.ascontiguousarray(own.T)
        pooled = numbaprims.max_pool(given, 3, **words)
        g = numbaprims.relu_backward(g, layers(pooled, operations[1:], own, layout))
        norm = (factor, mean, np.ones_like(mean))
        g, dfactor, dshift = batch_norm_backward_fixed(g, pooled, *norm, eps=0.0, layout=layout)
        g = numbaprims.max_pool_backward(g, given, 3, **words)
        want = np.stack([-factor * dshift, dfactor, dshift], 1)
        np.testing.assert_allclose(dparameters[:, at : at + 3], want, rtol=2e-5, atol=1e-4)
    np.testing.assert_array_equal(dx, g)


TEXTS = {
    "elements": "batch_norm/3 relu/0 add/0 prelu/1 silu/0",
    "windows": "relu/0 max/3x3/2x2/1x1/1x1/1x1/0/1 batch_norm/3 gelu/0 add/0 avg/2x2/1x1/0x0/0x0/1x1/0/1 sigmoid/0",
    "window_last": "affine/2 max/2x3/1x1/0x1/1x1/1x1/1/1",
    "window_first": "max/5x3/1x1/2x1/2x1/1x1/0/1 bias/1",
    "depthwise": "depthwise/3x3/1x1/1x1/1x1/1x1/0/1 bias/1 relu/0 depthwise/3x2/2x1/1x1/1x0/1x1/0/1 batch_norm/3",
    "depthwise_large": "batch_norm/3 max/3x3/1x1/1x1/1x1/1x1/0/1 depthwise/8x7/1x1/3x3/3x3/1x1/0/1 prelu/1 add/0",
    "depthwise_dilated": "scale/1 depthwise/2x3/1x2/0x2/1x2/3x2/0/1 avg/2x2/1x1/0x0/0x0/1x1/0/1",
    "dilated": "scale/1 max/3x3/1x2/2x2/2x2/2x2/0/1 tanh/0",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_torch_gives_the_same(name, layout, dtype):
    import torch
    from torch.nn import functional as F

    rng, texts = np.random.default_rng(2), TEXTS[name].split()
    kind = getattr(torch, dtype)
    wide = torch.float64 if dtype == "float64" else torch.float32
    x = torch.tensor(rng.standard_normal((2, 5, 11, 14)), dtype=kind)
    numbers = sum(parse(text).numbers for text in texts)
    values = torch.tensor(rng.random((5, numbers)) + 0.5, dtype=wide)
    leaves = [each.clone().to(torch.float64).requires_grad_() for each in (x, values)]
    y, at, added = leaves[0], 0, []
    for text in texts:
        each = parse(text)
        p = [leaves[1][:, at + k, None, None] for k in range(each.numbers)]
        at += each.numbers
        if isinstance(each, Window):
            pads = (each.before[1], each.after[1], each.before[0], each.after[0])
            padded = F.pad(y, pads, value=-np.inf if each.op == "max" else 0.0)
            if each.op == "depthwise":
                weight = torch.cat(p, 1).reshape(5, 1, *each.kernel)
                y = F.conv2d(padded, weight, None, each.stride, 0, each.dilation, groups=5)
            elif each.op == "max":
                y = F.max_pool2d(padded, each.kernel, each.stride, 0, each.dilation, each.ceil)
            else:
                y = F.avg_pool2d(padded, each.kernel, each.stride)
            continue
        if each.kind == "add":
            added.append(torch.tensor(rng.standard_normal(tuple(y.shape)), dtype=kind))
            leaves.append(added[-1].clone().to(torch.float64).requires_grad_())
            y = y + leaves[-1]
        elif each.kind in ("batch_norm", "affine", "bias", "scale"):
            y = {
                "batch_norm": lambda y, p: (y - p[0]) * p[1] + p[2], "affine": lambda y, p: y * p[0] + p[1],
                "bias": lambda y, p: y + p[0], "scale": lambda y, p: y * p[0],
            }[each.kind](y, p)  # fmt: skip
        else:
            y = F.prelu(y, p[0].reshape(-1)) if each.kind == "prelu" else getattr(F, each.kind)(y)
    dy = torch.tensor(rng.standard_normal(tuple(y.shape)), dtype=kind)
    want = torch.autograd.grad(y, [leaf for leaf in leaves if leaf.numel()], dy.to(torch.float64))
    move = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    given = [each.permute(move).contiguous() for each in (dy, x, *added)]
    found = numbaprims.stack_backward(*given[:2], texts, values if numbers else None, added=given[2:], layout=layout)
    close = {"float64": 1e-11, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    found = found if isinstance(found, tuple) else (found,)
    for have, wanted in zip(found, want, strict=True):
        wanted = wanted.permute(move) if wanted.ndim == 4 else wanted
        error = (have.to(torch.float64) - wanted).abs().max() / wanted.abs().max()
        assert error < close


@pytest.mark.parametrize("layout, shape", [("NCHW", (2, 3, 40, 37)), ("NHWC", (2, 20, 18, 32)), ("NHWC", (1, 9, 9, 5))])
def test_a_depthwise_window_is_the_gradient_of_its_convolution(layout, shape):
    """By x, by the weights and by a bias; only some of them; by every solver."""
    rng, c = np.random.default_rng(8), shape[1] if layout == "NCHW" else shape[3]
    x, weight, shift = image(rng, *shape), image(rng, c, 1, 3, 3), image(rng, c, 1)
    words = {"stride": (1, 2), "padding": 1, "groups": c, "layout": layout}
    operations = [Window("depthwise", (3, 3), (1, 2), (1, 1), (1, 1)), Pointwise("bias", 1)]
    dy = image(rng, *numbaprims.conv(x, weight, **words).shape)
    values = np.concatenate([weight.reshape(c, 9), shift], 1)
    want = (
        numbaprims.conv_backward_data(dy, weight, shape, **words),
        numbaprims.conv_backward_weight(dy, x, (c, 1, 3, 3), **words).reshape(c, 9),
        numbaprims.conv_backward_bias(dy, layout=layout)[:, None],
    )
    for solver in ("", "channels" if layout == "NHWC" else "planes", "naive"):
        with forced("stack", solver):
            dx, found = numbaprims.stack_backward(dy, x, operations, values, layout=layout)
            only = numbaprims.stack_backward(dy, x, operations, values, layout=layout, of_parameters=(9,))
            without = numbaprims.stack_backward(dy, x, operations, values, layout=layout, of_parameters=())
        for have, wanted in zip((dx, found[:, :9], found[:, 9:]), want, strict=True):
            np.testing.assert_allclose(have, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max() * x[0].size ** 0.5)
        np.testing.assert_array_equal(only[1], found[:, 9:])
        np.testing.assert_array_equal(only[0], dx)
        np.testing.assert_array_equal(without, dx)
    with pytest.raises(ValueError, match="of a window's weights 0 to 8 it must have all"):
        numbaprims.stack_backward(dy, x, operations, values, layout=layout, of_parameters=(1, 9))


def test_only_what_is_asked_for():
    rng = np.random.default_rng(3)
    x, dy, first, second = (image(rng, 2, 3, 9, 20) for _ in range(4))
    operations, more = [ADD, POOL, NORM, RELU, ADD], {"added": [first, second]}
    values = parameters(rng, 3, operations)
    dx, dparameters, dfirst, dsecond = numbaprims.stack_backward(dy, x, operations, values, **more)
    np.testing.assert_array_equal(dx, dfirst)
    np.testing.assert_array_equal(dy, dsecond)
    one = numbaprims.stack_backward(dy, x, operations, values, of_parameters=(), of_added=(), **more)
    np.testing.assert_array_equal(one, dx)
    two = numbaprims.stack_backward(dy, x, operations, values, of_parameters=(2,), of_added=[1], **more)
    np.testing.assert_array_equal(two[0], dx)
    np.testing.assert_array_equal(two[1], dparameters[:, 2:])
    np.testing.assert_array_equal(two[2], dy)


def test_more_parameters_than_the_engine_takes_arrays():
    """A run of operations is cut."""
    rng = np.random.default_rng(4)
    x, dy = image(rng, 2, 3, 5, 7), image(rng, 2, 3, 5, 7)
    operations = [NORM, Pointwise("tanh")] * 6
    values = parameters(rng, 3, operations)
    found = numbaprims.stack_backward(dy, x, operations, values)
    with numbaprims.config(device="reference"):
        want = numbaprims.stack_backward(
            *(each.astype(np.float64) for each in (dy, x)), operations, values.astype(np.float64)
        )
    for have, wanted in zip(found, want, strict=True):
        np.testing.assert_allclose(have, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("over", [0, 1])
def test_elements_alone_may_be_computed_in_place(over):
    rng = np.random.default_rng(5)
    arrays = [image(rng, 3, 5, 6, 7) for _ in range(2)]
    operations = [RELU, Pointwise("scale", 1), PRELU]
    values = parameters(rng, 5, operations)
    want = numbaprims.stack_backward(*arrays, operations, values)
    found = numbaprims.stack_backward(*arrays, operations, values, out=arrays[over])
    assert found[0] is arrays[over]
    for have, wanted in zip(found, want, strict=True):
        np.testing.assert_array_equal(have, wanted)


def test_slices_and_what_lies_beside_them():
    rng = np.random.default_rng(6)
    x, dy, wide = image(rng, 2, 7, 12, 17), image(rng, 2, 9, 12, 17), np.full((2, 9, 12, 17), 7, np.float32)
    operations = [POOL, PRELU, ADD]
    values, more = parameters(rng, 3, operations), {"added": [x[:, 4:]]}
    plain = numbaprims.stack_backward(dy[:, :3].copy(), x[:, :3].copy(), operations, values, **more)
    found = numbaprims.stack_backward(dy[:, :3], x[:, :3], operations, values, out=wide[:, 2:5], **more)
    for have, wanted in zip(found, plain, strict=True):
        np.testing.assert_array_equal(have, wanted)
    assert (wide[:, :2] == 7).all() and (wide[:, 5:] == 7).all()


def test_a_maximum_that_is_not_alone_goes_to_the_first():
    x = np.zeros((1, 1, 4, 5), np.float32)
    x[0, 0, 2, 1:3] = np.nan
    for layout, shape in (("NCHW", x.shape), ("NHWC", (1, 4, 5, 1))):
        dy = np.arange(1, 21, dtype=np.float32).reshape(shape)
        found = numbaprims.stack_backward(dy, x.reshape(shape), [POOL], layout=layout)
        want = numbaprims.max_pool_backward(dy, x.reshape(shape), 3, stride=1, padding=1, layout=layout)
        np.testing.assert_array_equal(found, want)


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, numbaprims
rng = np.random.default_rng(0)
x, dy = (rng.standard_normal((3, 24, 40, 41), np.float32) for _ in range(2))
texts, p = ["max/3x3/1x1/1x1/1x1/1x1/0/1", "batch_norm/3", "relu/0"], rng.random((24, 6), np.float32)
found = [*numbaprims.stack_backward(dy, x, texts * 2, p), *numbaprims.stack_backward(dy, x, texts[1:], p[:, :3].copy())]
found += numbaprims.stack_backward(dy.reshape(3, 40, 41, 24), x.reshape(3, 40, 41, 24), texts * 2, p, layout="NHWC")
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


X = np.zeros((1, 2, 4, 4), np.float32)


@pytest.mark.parametrize(
    "words, kind, text",
    [
        ({"dy": X[:, :, 1:]}, ValueError, r"dy is a .*; y has shape \(1, 2, 4, 4\)"),
        ({"x": X[0]}, ValueError, r"a stack takes images"),
        ({"dy": X.astype(np.int32), "x": X.astype(np.int32)}, TypeError, r"stack_backward takes float64"),
        ({"operations": [NORM]}, ValueError, r"parameters is None; these operations take 3"),
        ({"of_parameters": [0]}, ValueError, r"of_parameters is \(0,\).*asked for: \(\)"),
        (
            {"operations": [Pointwise("elu", 1)], "parameters": np.ones((2, 1), np.float32), "of_parameters": [0]},
            ValueError, r"asked for: \(\)",
        ),
        ({"of_added": [0]}, ValueError, r"of_added is \(0,\); arrays that are added are \(\)"),
        ({"operations": [POOL], "out": X}, ValueError, r"out .*overlaps|out shares"),
        ({"added": [X] * 5}, ValueError, r"at most 4"),
    ],
)  # fmt: skip
def test_refusals(words, kind, text):
    words = {"dy": X.copy(), "x": X, "operations": [RELU], **words}
    given = [words.pop(name) for name in ("dy", "x", "operations")]
    with pytest.raises(kind, match=text):
        numbaprims.stack_backward(*given, words.pop("parameters", None), **words)


def test_no_images_and_no_channels():
    dx, dparameters = numbaprims.stack_backward(
        *[np.zeros((0, 3, 8, 8), np.float32)] * 2, [PRELU], np.ones((3, 1), np.float32)
    )
    assert dx.shape == (0, 3, 8, 8) and (dparameters == np.zeros((3, 1))).all()
    assert numbaprims.stack_backward(*[np.zeros((2, 0, 8, 8), np.float32)] * 2, [POOL]).shape == (2, 0, 8, 8)


def test_one_native_call():
    """The gradient of a stack is one program, element-wise ones of one phase."""
    from numbaprims.cpu import target
    from numbaprims.cpu.stack import SOLVERS

    x, p = np.ones((2, 4, 16, 16), np.float32), np.ones((4, 3), np.float32)
    for operations, phases in (([NORM, RELU], 1), ([POOL, NORM, RELU], 2)):
        problem = problem_of("stack_backward", x, x, operations, p)
        solver = next(each for each in SOLVERS if each.why_not(problem, target.current()) is None)
        program = solver.program(problem, target.current(), {})
        assert sum(len(run.phases) for run in program.runs) == phases


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
@pytest.mark.parametrize("c", [5, 35])
def test_parameters_lie_anyhow(c, stride, layout):
    """A channel's side by side, or a parameter's; several boxes of images, and one."""
    rng = np.random.default_rng(9)
    pool = Window("max", (3, 3), stride, (1, 1), (1, 1))
    shape = (6, c, 11, 9) if layout == "NCHW" else (6, 11, 9, c)
    x, operations = image(rng, *shape), [NORM, pool, NORM, RELU]
    values = parameters(rng, c, operations)
    dy = image(rng, *numbaprims.stack(x, operations, values, layout=layout).shape)
    dx, dparameters = numbaprims.stack_backward(dy, x, operations, values, layout=layout)
    other = numbaprims.stack_backward(dy, x, operations, np.asfortranarray(values), layout=layout)
    np.testing.assert_array_equal(dx, other[0])
    np.testing.assert_array_equal(dparameters, other[1])
    each = [numbaprims.stack_backward(dy[n : n + 1], x[n : n + 1], operations, values, layout=layout) for n in range(6)]
    np.testing.assert_array_equal(dx, np.concatenate([one for one, _ in each]))
    np.testing.assert_allclose(dparameters, np.sum([sums for _, sums in each], 0), rtol=1e-4, atol=1e-4)
    plain = [
        numbaprims.stack(x, [NORM, RELU], values[:, :3], layout=layout)
        for values in (values, np.asfortranarray(values))
    ]
    np.testing.assert_array_equal(*plain)
    for found in (values[:, :3].copy(), np.asfortranarray(values[:, :3])):
        one = numbaprims.stack_backward(x, x, [NORM, RELU], found, layout=layout)
        np.testing.assert_array_equal(
            one[0], x * (plain[0] > 0) * values[:, 1].reshape((c, 1, 1) if layout == "NCHW" else c)
        )


def test_boxes_of_channels_last_are_whole_images():
    """Of fewer images than workers all of them, and parameters that lie apart leave no formula to the naive solver."""
    from numbaprims.cpu import target
    from numbaprims.cpu.reduce.posed import PosedReduction
    from numbaprims.cpu.stack import SOLVERS
    from numbaprims.cpu.stack.gradients import side_by_side, way_of
    from numbaprims.ops._reduction_problem import Reduction
    from numbaprims.ops._stack_gradient import tasks

    channels = next(each for each in SOLVERS if each.name == "channels")
    for images, cores, taken in ((8, 2, 1), (32, 2, 4), (3, 4, 3), (1, 1, 1)):
        x, p = np.ones((images, 6, 6, 32), np.float32), np.ones((32, 3), np.float32)
        problem = problem_of("stack_backward", x, x, [POOL, NORM, RELU], p, layout="NHWC")
        cpu = dataclasses.replace(target.current(), cores_logical=cores)
        box = way_of(side_by_side(problem, True), cpu, channels).box
        assert (box.n, box.c, box.last) == (taken, 32, True)
        runs = [task.problem for task in tasks(box)[0] if isinstance(task.problem, Reduction)]
        assert runs and all(PosedReduction(run)._solver(cpu).name != "naive" for run in runs)
    elements = problem_of("stack_backward", x, x, [NORM, RELU], p, layout="NHWC")
    assert SOLVERS[0].estimate(elements, cpu) < SOLVERS[-1].estimate(elements, cpu) / 2
