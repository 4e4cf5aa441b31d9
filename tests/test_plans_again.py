"""Plans that run again: native code knows the arrays of a run, and must see all that makes it another."""

import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import helpers
import numpy as np
import pytest
from fusion_plan_cases import F32, complete, real

import numbaprims
from numbaprims import FusionPlan, arrays
from numbaprims.fusion.layers import Activation, Flatten, MaxPool, Scale

STATISTICS = ("scale", "shift", "mean", "var")


def norm_and_relu(rng, n=2, c=4, size=6):
    plan = FusionPlan((n, c, size, size))
    norm = plan.batch_norm()
    plan.activation("relu")
    assert plan.compile()
    plan.set_args(norm, **{name: rng.random(c).astype(F32) + F32(0.5) for name in STATISTICS})
    return plan, norm, real(rng, n, c, size, size)


def conv_and_pool(rng):
    plan = FusionPlan((2, 3, 8, 8))
    conv = plan.conv((4, 3, 3, 3))
    plan.pool("max", 2)
    assert plan.compile() and len(plan._calls) == 2
    plan.set_args(conv, weight=real(rng, 4, 3, 3, 3))
    return plan, conv, real(rng, 2, 3, 8, 8)


def training(rng):
    plan = FusionPlan((4, 3, 5, 5))
    norm = plan.batch_norm(training=True)
    plan.activation("relu")
    assert plan.compile()
    plan.set_args(norm, scale=rng.random(3).astype(F32), shift=real(rng, 3))
    return plan, norm, real(rng, 4, 3, 5, 5)


def added(rng):
    plan, (_, _, add, _), x = complete()
    return plan, add, x


def integers(rng):
    plan = FusionPlan((2, 3, 6, 6), "uint8")
    conv, scale, cast = plan.conv((4, 3, 3, 3)), plan.scale(), plan.cast("int8")
    assert plan.compile()
    plan.set_args(conv, weight=rng.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8))
    plan.set_args(scale, scale=np.full(4, 0.01, F32))
    plan.set_args(cast, scale=0.5)
    return plan, conv, rng.integers(0, 99, (2, 3, 6, 6)).astype(np.uint8)


CASES = (norm_and_relu, conv_and_pool, training, added, integers)


def recognised(call):
    return helpers.recognised(call, arrays, "enter")[0]


def apart(plan, x, out=None):
    """By the public calls, one after another."""
    bound = plan._bind()
    return plan._apart(bound.runs, bound.arguments, x, out)


def same(have, want):
    have, want = (each if isinstance(each, tuple) else (each,) for each in (have, want))
    for a, b in zip(have, want, strict=True):
        assert a.dtype == b.dtype and a.strides == b.strides
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", CASES)
def test_runs_are_recognised_and_keep_their_bits(rng, make):
    plan, _, x = make(rng)
    want = apart(plan, x)
    out = np.empty_like(want[0] if isinstance(want, tuple) else want)
    assert recognised(lambda: plan(x)) and recognised(lambda: plan(x, out=out))
    other = x[::-1].copy()
    results = [plan(x) for _ in range(2)]
    for have in results:
        same(have, want)
    assert not np.may_share_memory(*(each[0] if isinstance(each, tuple) else each for each in results))
    same(plan(other), apart(plan, other))
    have = plan(x, out=out)
    assert (have[0] if isinstance(have, tuple) else have) is out
    same(have, want)


def test_runs_in_place_are_recognised(rng):
    plan, _, x = norm_and_relu(rng)
    want, first = plan(x), x.copy()
    assert recognised(lambda: plan(x, out=x))
    x[...] = first
    assert plan(x, out=x) is x
    same(x, want)
    same(plan(first), want)


@pytest.mark.parametrize("make", CASES)
def test_arguments_that_are_set_take_effect(rng, make):
    plan, operator, x = make(rng)
    assert recognised(lambda: plan(x))
    for _ in range(2):
        given = plan._arguments[operator]
        values = {name: each[::-1].copy() for name, each in given.items() if isinstance(each, np.ndarray)}
        before = plan(x)
        plan.set_args(operator, **values)
        fresh = pickle.loads(pickle.dumps(plan))
        for _ in range(4):
            have = plan(x)
            same(have, apart(plan, x))
            same(have, fresh(x))
        first = [each[0] if isinstance(each, tuple) else each for each in (before, have)]
        assert (first[0] != first[1]).any()


def test_what_is_added_is_read_at_each_run(rng):
    plan, add, x = added(rng)
    array = np.zeros((2, 3, 4, 4), F32)
    plan.set_args(add, added=array)
    assert recognised(lambda: plan(x))
    for value in (1, -3):
        array[...] = value
        same(plan(x), apart(plan, x))
    wide = np.ones((2, 3, 4, 8), F32)
    plan.set_args(add, added=wide[..., ::2])
    for value in (1, -3, 2, 5):
        wide[...] = value
        same(plan(x), apart(plan, x))
    assert recognised(lambda: plan(x))


def test_arrays_that_lie_otherwise(rng):
    """Of other strides, halves of memory, unaligned; then those of before again."""
    plan, _, x = norm_and_relu(rng)
    want = plan(x)
    assert recognised(lambda: plan(x))
    wide = np.zeros((2, 4, 6, 12), F32)
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(F32).reshape(x.shape)
    for other in (wide[..., ::2], np.empty((2, 6, 6, 4), F32).transpose(0, 3, 1, 2), unaligned, x[::-1, :, :, ::-1]):
        values = other.copy() if np.may_share_memory(other, x) else x
        if values is x:
            other[...] = x
        for out in (None, np.empty(x.shape, F32), np.zeros((2, 4, 6, 12), F32)[..., ::2]):
            for _ in range(3):
                np.testing.assert_array_equal(plan(other, out=out), apart(plan, values))
    same(plan(x), want)


@pytest.mark.parametrize("make", CASES)
def test_what_is_wrong_is_seen_again(rng, make):
    plan, _, x = make(rng)
    out = plan(x)
    out = out[0] if isinstance(out, tuple) else out
    assert recognised(lambda: plan(x, out=out)) and recognised(lambda: plan(x))
    kept = out.copy()
    locked = out.copy()
    locked.flags.writeable = False
    for given, target, error, words in (
        (x[:, :, 1:], out, ValueError, "this plan takes"),
        (x[0], None, ValueError, "this plan takes"),
        (x.astype(np.float64), None, ValueError, "this plan takes"),
        (x.tolist(), None, TypeError, "x is a list"),
        (None, out, TypeError, "x is a NoneType"),
        (x, out[1:], ValueError, "shape"),
        (x, out.astype(np.float64), TypeError, "out is a float64"),
        (x, locked, ValueError, "read-only"),
        (x, out.tolist(), TypeError, "out is a list"),
    ):
        for _ in range(2):
            with pytest.raises(error, match=re.escape(words)):
                plan(given, out=target)
    same(out, kept)
    room = np.zeros(x.nbytes + out.nbytes, np.uint8)
    inner = room[: x.nbytes].view(x.dtype).reshape(x.shape)
    over = room[out.itemsize :][: out.nbytes].view(out.dtype).reshape(out.shape)
    inner[...] = x
    if len(plan._calls) == 1:
        with pytest.raises(ValueError, match="shares memory"):
            plan(inner, out=over)
        same(inner, x)
    else:  # the last call does not read x
        same(plan(inner, out=over), kept)
    same(plan(x), apart(plan, x))


def test_out_over_what_is_added(rng):
    """It may be that array itself, as `c` of a convolution; no other part of its memory."""
    plan, add, x = added(rng)
    room = np.zeros(97, F32)
    array, beside = room[:96].reshape(2, 3, 4, 4), room[1:].reshape(2, 3, 4, 4)
    plan.set_args(add, added=array)
    want = plan(x)
    assert recognised(lambda: plan(x, out=np.empty_like(array)))
    for _ in range(3):
        with pytest.raises(ValueError, match="shares memory"):
            plan(x, out=beside)
        assert not room.any()
    for _ in range(3):
        array[...] = 0
        assert plan(x, out=array) is array
        same(array, want)


def test_other_libraries_after_numpy(rng):
    torch = pytest.importorskip("torch")
    plan, norm, x = norm_and_relu(rng)
    want = plan(x)
    assert recognised(lambda: plan(x))
    with pytest.raises(TypeError, match="the plan's arguments are numpy arrays"):
        plan(torch.from_numpy(x))
    with pytest.raises(TypeError, match="out is a"):
        plan(x, out=torch.from_numpy(x.copy()))
    tensors, again = FusionPlan(x.shape), {name: torch.from_numpy(v) for name, v in plan._arguments[norm].items()}
    own = tensors.batch_norm()
    tensors.activation("relu")
    assert tensors.compile()
    tensors.set_args(own, **again)
    for _ in range(3):
        y = tensors(torch.from_numpy(x))
        assert isinstance(y, torch.Tensor)
        same(y.numpy(), want)
    with pytest.raises(TypeError, match="the plan's arguments are torch arrays"):
        tensors(x)


def test_settings_count(rng, capfd):
    plan, _, x = norm_and_relu(rng, 4, 32, 56)
    want = plan(x)
    assert recognised(lambda: plan(x))
    for threads in (1, 2, 3):
        with numbaprims.config(threads=threads):
            for _ in range(3):
                same(plan(x), want)
    capfd.readouterr()
    with numbaprims.config(verbose=1):
        plan(x)
    assert "stack" in capfd.readouterr().err
    with numbaprims.config(device="reference"):
        np.testing.assert_allclose(plan(x), want, rtol=1e-5, atol=1e-5)
        assert not recognised(lambda: plan(x))
    numbaprims.dispatch.call.forget()
    assert not plan._bind().joined._known._tables
    same(plan(x), want)
    assert recognised(lambda: plan(x))


def test_a_plan_that_is_changed_asks_for_compile(rng):
    plan, norm, x = norm_and_relu(rng)
    first = plan(x)
    assert recognised(lambda: plan(x))
    again = pickle.loads(pickle.dumps(plan))
    more = plan.add()
    with pytest.raises(ValueError, match="not compiled"):
        plan(x)
    assert plan.compile()
    with pytest.raises(ValueError, match=re.escape("add (operator 3): added not set")):
        plan(x)
    plan.set_args(more, added=np.ones_like(x))
    for _ in range(4):
        np.testing.assert_allclose(plan(x), first + 1, rtol=1e-6)
        same(again(x), first)
    assert recognised(lambda: again(x))


def test_threads_run_what_another_sets(rng):
    """Each result is of the arguments before or after, whole; the later ones are seen."""
    plan, norm, x = norm_and_relu(rng)
    shifts, wanted = [np.full(4, value, F32) for value in (3, 5)], []
    for shift in shifts:
        plan.set_args(norm, shift=shift)
        wanted.append(plan(x))
    stop, runs, wrong = threading.Event(), [0], []

    def work(_):
        out = np.empty_like(x)
        while not stop.is_set():
            for y in (plan(x), plan(x, out=out)):
                runs[0] += 1
                if not any(np.array_equal(y, want) for want in wanted):
                    wrong.append(y.copy())

    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(work, k) for k in range(2)]
        try:
            for k in range(20):
                plan.set_args(norm, shift=shifts[k % 2])
                same(plan(x), wanted[k % 2])
                enough = runs[0] + 50
                while runs[0] < enough and not any(each.done() for each in works):
                    pass
        finally:
            stop.set()
        for each in works:
            each.result()
    assert not wrong and runs[0] >= 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_goes_on():
    code = """
        import os, numpy as np, numbaprims
        plan = numbaprims.FusionPlan((4, 32, 56, 56))
        scale = plan.scale()
        plan.activation("relu")
        assert plan.compile()
        plan.set_args(scale, scale=np.full(32, -2, np.float32))
        x = np.arange(-20, 4 * 32 * 56 * 56 - 20, dtype=np.float32).reshape(4, 32, 56, 56)
        small = numbaprims.conv.plan((1, 1, 2, 2), np.ones((1, 1, 1, 1), np.float32))
        want = np.maximum(-2 * x, 0)
        good = lambda: (plan(x) == want).all() and (small(x[:1, :1, :2, :2]) == x[:1, :1, :2, :2]).all()
        assert all(good() for _ in range(4))
        child = os.fork()
        if child == 0:
            plan.set_args(scale, scale=np.full(32, -2, np.float32)) if not good() else None
            os._exit(0 if all(good() for _ in range(4)) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), all(good() for _ in range(4)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "0 True", done.stderr


# ---------------------------------------------------------------- other plans


def products(rng):
    weight, bias = real(rng, 9, 7), real(rng, 7)
    return numbaprims.gemm.plan(weight, bias=bias, activation="relu"), bias, weight, [real(rng, n, 9) for n in (3, 50)]


def convolutions(rng):
    weight, bias = real(rng, 4, 3, 3, 3), real(rng, 4)
    plan = numbaprims.conv.plan((1, 3, 9, 9), weight, bias=bias, padding=1)
    return plan, bias, weight, [real(rng, n, 3, 9, 9) for n in (1, 2)]


def by_definition(plan, weight, bias, x):
    weight, bias, x = (each.astype(np.float64) for each in (weight, bias, x))
    if x.ndim == 2:
        return np.maximum(x @ weight + bias, 0)
    return numbaprims.conv(x, weight, bias, padding=1)


@pytest.mark.parametrize("make", [products, convolutions])
def test_plans_of_products(rng, make):
    """Of each size its own packed copy; new weights, a bias that changes, and `out` over what is read are seen."""
    plan, bias, weight, inputs = make(rng)
    for _ in range(2):
        for x in inputs:
            first = plan(x)
            out = np.empty_like(first)
            assert recognised(lambda x=x: plan(x)) and recognised(lambda x=x, out=out: plan(x, out=out))
        for _ in range(2):
            for x in inputs:
                y = plan(x)
                np.testing.assert_allclose(y, by_definition(plan, weight, bias, x), rtol=1e-4, atol=1e-4)
                same(pickle.loads(pickle.dumps(plan))(x), y)
        bias[...] = bias[::-1].copy()
        for x in inputs:
            np.testing.assert_allclose(plan(x), by_definition(plan, weight, bias, x), rtol=1e-4, atol=1e-4)
        weight = weight[::-1].copy()
        plan.update(weight)
        for x in inputs:
            np.testing.assert_allclose(plan(x), by_definition(plan, weight, bias, x), rtol=1e-4, atol=1e-4)
    x = inputs[0]
    first = plan(x)
    room = np.zeros(x.size + first.size, F32)
    room[: x.size] = x.ravel()
    with pytest.raises(ValueError, match="out shares memory with"):
        plan(room[: x.size].reshape(x.shape), out=room[1 : 1 + first.size].reshape(first.shape))
    with pytest.raises((TypeError, ValueError)):
        plan(x.astype(np.float64))
    same(plan(x), first)


def test_out_over_a_plans_bias(rng):
    room = np.zeros(4 * 81 + 8, F32)
    bias, out = room[:4], room[2 : 2 + 4 * 81].reshape(1, 4, 9, 9)
    bias[...] = 1
    plan, x = numbaprims.conv.plan((1, 3, 9, 9), real(rng, 4, 3, 3, 3), bias=bias, padding=1), real(rng, 1, 3, 9, 9)
    assert recognised(lambda: plan(x))
    with pytest.raises(ValueError, match="out shares memory with bias"):
        plan(x, out=out)


def test_networks_of_one_stack(rng):
    net = numbaprims.fuse([MaxPool(2), Scale(-1.0), Activation("relu")], (1, 4, 8, 8))
    for n in (1, 3):
        x = real(rng, n, 4, 8, 8)
        want = net.layer_by_layer(x)
        out = np.empty_like(want)
        assert recognised(lambda x=x: net(x)) and recognised(lambda x=x, out=out: net(x, out=out))
        same(net(x), want)
        same(net(x, out=out), want)
        same(net(x[..., ::-1]), net.layer_by_layer(x[..., ::-1]))
        same(pickle.loads(pickle.dumps(net))(x), want)
    with pytest.raises(ValueError, match="this plan takes"):
        net(x[:, :2])
    with pytest.raises(ValueError, match="memory"):
        net(x, out=x.reshape(-1)[: want.size].reshape(want.shape))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 6), (2, 3, 7)])
@pytest.mark.parametrize("made", [lambda: [Scale(2.0)], lambda: [Flatten()], lambda: [Flatten(), Scale(2.0)]])
def test_arrays_with_gaps_of_a_fused_network_that_runs_again(rng, shape, made):
    """What makes of them an array without gaps is part of the program, not of the first run."""
    net = numbaprims.fuse(made(), shape)
    for _ in range(3):
        x = real(rng, *shape)
        for view in (np.asfortranarray(x), x[..., ::-1], x):
            want = net.layer_by_layer(np.ascontiguousarray(view))
            out = np.zeros(want.shape, F32)
            np.testing.assert_array_equal(net(view), want)
            net(view, out=out)
            np.testing.assert_array_equal(out, want)
