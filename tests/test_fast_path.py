"""Public functions that native code answers: what it must see before it does, and that they stay Python's functions."""

import concurrent.futures
import copy
import gc
import inspect
import os
import pickle
import sys

import contract
import numpy as np
import pytest
from helpers import KNOWN as ENOUGH, entered

import numbaprims
from numbaprims import stems
from numbaprims.dispatch import fast_path
from numbaprims.ops import primitive, product
from numbaprims.stems import FAST

KINDS = [kind for kind in stems.KINDS if kind != "prelu"]
#: Calls of a function that make something else of what a launch gives, or of more than one launch: Python's for good.
NOT_ONE_LAUNCH = {
    "layer_norm_backward", "rms_norm_backward", "group_norm_backward", "instance_norm_backward", "prelu_backward",
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh():
    numbaprims.dispatch.call.forget()


def known(name):
    return len(fast_path.memo_of(getattr(numbaprims, name)))


def answered(call, times=ENOUGH):
    """Run a call until it is learned: whether Python's road is then left alone, and what it gives."""
    for _ in range(times):
        call()
    with pytest.MonkeyPatch.context() as patch:
        seen = [entered(patch, module, "_enter") for module in (primitive, product)]
        result = call()
    return not any(seen), result


def flat(result):
    return result if isinstance(result, tuple) else (result,)


def same(found, wanted):
    for x, y in zip(flat(found), flat(wanted), strict=True):
        if x is None:
            assert y is None
            continue
        assert type(x) is type(y) and x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# ---------------------------------------------------------------- functions of Python's


@pytest.mark.parametrize("name", ["gemm", "relu", "batch_norm_train", "conv"])
def test_they_are_functions_to_whoever_asks(name):
    function = getattr(numbaprims, name)
    wrapped = function.__wrapped__
    assert inspect.isfunction(wrapped) and inspect.isroutine(function) and callable(function)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__"):
        assert getattr(function, attribute) == getattr(wrapped, attribute)
    assert inspect.signature(function) == inspect.signature(wrapped)
    assert inspect.getsource(function) == inspect.getsource(wrapped)
    assert repr(function) == repr(wrapped)
    assert copy.copy(function) is function and copy.deepcopy(function) is function
    assert pickle.loads(pickle.dumps(function)) is function
    with pytest.raises(AttributeError, match="nothing"):
        function.nothing  # noqa: B018


def test_they_are_methods_of_no_class():
    class Layer:
        activation = numbaprims.relu

    assert (Layer().activation(np.float32([-1, 1])) == [0, 1]).all()


def test_wrong_arguments_are_told_as_python_tells_them():
    x = np.ones(4, np.float32)
    for _ in range(ENOUGH):
        numbaprims.binary(x, x.copy(), "add")
    for call, words in (
        (lambda: numbaprims.binary(x), "missing 2 required positional arguments"),
        (lambda: numbaprims.binary(x, x, "add", nothing=1), "unexpected keyword argument 'nothing'"),
        (lambda: numbaprims.binary(x, x, "add", 1.0), "positional argument"),
        (lambda: numbaprims.binary(*[x] * 40), "positional argument"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name", sorted(FAST & {call.function for call in contract.CALLS}))
def test_every_function_gives_what_python_gives(name):
    calls = [call for call in contract.CALLS if call.function == name]
    for call in calls[:3]:
        function = getattr(numbaprims, name)
        for seed in range(ENOUGH + 2):  # other numbers in arrays that lie alike
            args, words = call.given(*contract.made(call, "f32", seed=seed))
            again, others = call.given(*contract.made(call, "f32", seed=seed))
            same(function(*args, **words), function.__wrapped__(*again, **others))
            for x, y in zip((*args, *words.values()), (*again, *others.values()), strict=True):
                if isinstance(x, np.ndarray):
                    np.testing.assert_array_equal(x, y)
    if name not in NOT_ONE_LAUNCH and all(isinstance(x, np.ndarray) for x in args):
        assert known(name)


@pytest.mark.parametrize("backward", [False, True])
def test_every_activation_gives_what_python_gives(rng, backward):
    for kind in KINDS:
        function = getattr(numbaprims, f"{kind}_backward" if backward else kind)
        parameters = inspect.signature(function).parameters
        words = {"threshold": 0.5, "value": 0.25} if kind == "threshold" else {}
        for _ in range(ENOUGH + 1):
            x, dy = rng.uniform(0.1, 0.9, (2, 38)).astype(np.float32)
            given = {"dy": dy[: 19 if kind == "glu" else 38], "weight": 0.25}
            given |= {name: x for name in ("x", "y") if name in parameters and not {"x", "y"} & set(given)}
            args = {name: value for name, value in given.items() if name in parameters} | words
            same(function(**args), function.__wrapped__(**args))
        assert known(function.__name__), kind


def test_products_and_convolutions(rng):
    for _ in range(ENOUGH + 1):
        a, b = rng.standard_normal((2, 6, 6)).astype(np.float32)
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 8, 8), (4, 3, 3, 3)))
        for name, args, words in (
            ("gemm", (a, b), {}), ("gemm", (a, b), {"trans_b": True, "alpha": 0.5, "activation": "relu"}),
            ("gemm", (a, b), {"c": a, "beta": 1.0}), ("linear", (a, b, b[0]), {}), ("gemv", (a, b[0]), {}),
            ("gemv", (a, b[0]), {"y": b[1], "beta": 2.0}), ("ger", (a[0], b[0]), {}), ("ger", (a[0], b[0]), {"a": a}),
            ("conv", (x, w), {"padding": 1}), ("conv_backward_bias", (x,), {}),
            ("conv_backward_data", (x, w[:3], (1, 3, 10, 10)), {}),
        ):  # fmt: skip
            function = getattr(numbaprims, name)
            same(function(*args, **words), function.__wrapped__(*args, **words))
    assert all(known(name) for name in ("gemm", "linear", "gemv", "ger", "conv", "conv_backward_bias"))


# ---------------------------------------------------------------- what is compared


def test_constants_count():
    x, y = np.float32([1, 2, -3]), np.float32([4, 5, 6])
    for _ in range(ENOUGH + 1):
        for op, want in (("add", x + y), ("sub", x - y), ("mul", x * y), ("less", x < y)):
            same(numbaprims.binary(x, y, op), want)
            same(numbaprims.binary(x, y, "".join(op)), want)
            same(numbaprims.binary(x, b=y, op=op), want)
            same(numbaprims.binary(op=op, b=y, a=x), want)
        for slope in (0.5, 0.25, -0.0, 0.0, 1):
            same(numbaprims.leaky_relu(x, slope), np.where(x < 0, x * np.float32(slope), x))
            same(numbaprims.scale(x, slope), x * np.float32(slope))
        same(numbaprims.reduce(x[None], "sum", axis=1, keepdims=True), x.sum(keepdims=True)[None])
        same(numbaprims.reduce(x[None], "sum", axis=1), x.sum(keepdims=True))
        same(numbaprims.reduce(x[None], "sum", axis=(0, 1)), np.array(x.sum()))
        same(numbaprims.cast(x, "int8"), x.astype(np.int8))
        same(numbaprims.cast(x, np.float64), x.astype(np.float64))
        same(numbaprims.transform(x[None], (1, 0)), np.ascontiguousarray(x[:, None]))
    y = x.reshape(1, 1, 3, 1)
    for _ in range(ENOUGH):  # tuples and integers of their own each time
        numbaprims.reduce(y, "sum", axis=tuple([0, 2]))
        numbaprims.resize(y, size=tuple([int("1000"), int("1")]))
    assert answered(lambda: numbaprims.reduce(y, "sum", axis=tuple([0, 2])))[0]
    assert answered(lambda: numbaprims.resize(y, size=tuple([int("1000"), int("1")])))[0]
    assert numbaprims.resize(y, size=(1001, 1)).shape == (1, 1, 1001, 1)
    for value in (1 << 62, 1 << 63, -(1 << 63), 1 << 64, 1 << 200):
        for _ in range(ENOUGH):
            with pytest.raises((ValueError, OverflowError)):
                numbaprims.reduce(x, "sum", axis=value)
    for value in range(1000, 1040):
        with pytest.raises(ValueError, match="axis"):
            numbaprims.reduce(x, "sum", axis=value)


def test_what_is_no_constant_stays_with_python():
    x = np.float32([1, 2, 3])
    axes = [0]
    for _ in range(ENOUGH + 1):
        with pytest.raises(TypeError):
            numbaprims.reduce(x, "sum", axis=axes[0:1] * 1 + ["no"])
    slope = np.float32([0.5])
    for value in (0.5, 0.25, 0.125, 1.0, 2.0):  # its only element is read: the launch has it as a number
        slope[0] = value
        same(numbaprims.prelu(-x, slope), -x * np.float32(value))


def test_lists_and_tuples_of_arrays():
    x, y, z = np.float32([1, 2, 3]), np.float32([4, 5]), np.float32([6])
    assert answered(lambda: numbaprims.concat([x, y, z], 0))[0]
    assert answered(lambda: numbaprims.concat((x, y), axis=0))[0]
    parts = [x, y]
    for more in (z, x[:1], y, z):
        same(numbaprims.concat(parts, 0), np.concatenate(parts))
        same(numbaprims.concat(tuple(parts), 0), np.concatenate(parts))
        parts.append(more)
    many = [np.float32([k]) for k in range(50)]
    for _ in range(ENOUGH + 1):
        same(numbaprims.concat(many, 0), np.concatenate(many))
        same(numbaprims.concat([x, x], 0), np.concatenate([x, x]))
        same(numbaprims.reduce(x[None], "sum", axis=[0, 1]), np.array(x.sum()))
        for wrong in ([], [x, None], [x, [y]], [[x], y], [x, 1.0], [x, "y"], (x, 3), [x[None], y]):
            with pytest.raises((TypeError, ValueError)):
                numbaprims.concat(wrong, 0)
        out = np.empty(5, np.float32)
        assert numbaprims.concat([x, y], 0, out=out) is out
        same(out, np.concatenate([x, y]))
        with pytest.raises(ValueError, match="memory"):
            numbaprims.concat([out[:3], y], 0, out=out)


def test_one_array_in_two_places():
    x, y, out = np.float32([1, 2]), np.float32([10, 20]), np.empty(2, np.float32)
    assert answered(lambda: numbaprims.binary(x, x, "mul"), 100)[0]
    assert answered(lambda: numbaprims.binary(x, y, "mul"))[0]
    for _ in range(ENOUGH + 1):
        same(numbaprims.binary(x, x, "sub"), x - x)
        same(numbaprims.concat([x, y, x], 0), np.concatenate([x, y, x]))
        same(numbaprims.concat([x, y, y], 0), np.concatenate([x, y, y]))
    for _ in range(ENOUGH + 1):
        same(numbaprims.binary(x, y, "sub"), x - y)
        same(numbaprims.binary(y, x, "sub", out=out), y - x)
        z = x.copy()
        assert numbaprims.binary(z, y, "sub", out=z) is z
        same(z, x - y)
        z = y.copy()
        assert numbaprims.binary(x, z, "sub", out=z) is z
        same(z, x - y)
        with pytest.raises(ValueError, match="memory"):
            room = np.zeros(4, np.float32)
            numbaprims.binary(room[:2], y, "sub", out=room[1:3])
    known_call, _ = answered(lambda: numbaprims.abs(x, out=x))
    assert known_call
    assert numbaprims.fill(x, 3.0) is x


def test_an_array_may_be_read_as_a_number():
    """Of one element, in a place of the launch and in another that is read: no pattern says which is which."""
    x, where = np.float32([-2.0]), np.array(-2.0)
    for value in (-2.0,) * 6 + (-3.0, 5.0):
        x[0] = where[()] = value
        same(numbaprims.prelu(x, x), x if value > 0 else x * x)
        same(numbaprims.scale(where, where), np.array(where * where))
        same(numbaprims.binary(where, where, "add", alpha1=where), np.array(where * where + where))
        y = where.copy()
        assert numbaprims.fill(y, y) is y and y == value
    torch = pytest.importorskip("torch")
    t = torch.tensor([-2.0])
    for value in (-2.0,) * 6 + (-3.0, 5.0):
        t[0] = value
        assert torch.equal(numbaprims.scale(t, t), t * t) and torch.equal(numbaprims.prelu(t, t), torch.prelu(t, t))


def test_launches_that_differ_by_the_arrays(rng):
    """The default scale of attention follows from the length of a head, and is a number of the launch."""
    for _ in range(ENOUGH + 1):
        for d in (8, 16, 32):
            q, k, v = rng.standard_normal((3, 1, 2, 5, d)).astype(np.float32)
            same(numbaprims.attention(q, k, v), numbaprims.attention.__wrapped__(q, k, v))


def test_other_arrays_are_other_calls(rng):
    for _ in range(ENOUGH + 1):
        for shape in ((6, 4), (24,), (4, 6), (2, 3, 4)):
            for dtype in (np.float32, np.float64, np.float16):
                x = rng.integers(-9, 9, shape).astype(dtype)
                for view in (x, x.T, x[::-1], x[..., ::2]):
                    same(numbaprims.abs(view), np.abs(view))
        with pytest.raises(TypeError):
            numbaprims.abs([1.0, 2.0])
        with pytest.raises(TypeError):
            numbaprims.abs(np.ma.masked_array([1.0]))


def test_many_patterns_are_learned_at_once():
    x, slopes = np.float32([-1, 1]), [k / 64 for k in range(1, 60)]
    for _ in range(ENOUGH):
        for slope in slopes:
            numbaprims.leaky_relu(x, slope)
    # two of them may share a place where is counted what has come
    assert known("leaky_relu") > 50


def test_more_patterns_than_are_kept():
    x = np.float32([-1, 1])
    for value in np.linspace(0, 1, fast_path.MOST_PATTERNS + 20).tolist():
        for _ in range(ENOUGH + 1):
            same(numbaprims.leaky_relu(x, value), np.float32([-value, 1]))
    assert 0 < known("leaky_relu") <= fast_path.MOST_PATTERNS


# ---------------------------------------------------------------- settings


def test_settings_count(capfd):
    x = np.float32([-1, 1])
    assert answered(lambda: numbaprims.abs(x))[0]
    with numbaprims.config(verbose=1):
        numbaprims.abs(x)
    assert "--kind abs" in capfd.readouterr().err
    with numbaprims.config(algorithm="activation:naive"):
        for _ in range(ENOUGH + 1):
            numbaprims.abs(x)
        assert answered(lambda: numbaprims.abs(x))[0]
        with numbaprims.config(verbose=1):
            numbaprims.abs(x)
    assert "naive" in capfd.readouterr().err
    with numbaprims.config(device="reference"):
        assert not answered(lambda: numbaprims.abs(x))[0]
    for threads in (1, 2, 1):  # another record of settings each time, and equal ones are one
        with numbaprims.config(threads=threads):
            assert answered(lambda: numbaprims.abs(x))[0]
    with numbaprims.config(threads=1):
        assert answered(lambda: numbaprims.abs(x), 0)[0]


def test_the_process_default_counts(capfd):
    x = np.float32([-1, 1])
    assert answered(lambda: numbaprims.abs(x))[0]
    try:
        numbaprims.config.set(verbose=1)
        numbaprims.abs(x)
        assert "--kind abs" in capfd.readouterr().err
        with numbaprims.config(threads=1):
            numbaprims.config.set(verbose=0, algorithm="activation:naive")
            assert answered(lambda: numbaprims.abs(x))[0]
        numbaprims.config.set(verbose=1)
        numbaprims.abs(x)
        assert "naive" in capfd.readouterr().err
    finally:
        numbaprims.settings.reload()


def test_forgetting(capfd):
    x = np.float32([-1, 1])
    assert answered(lambda: numbaprims.abs(x))[0] and known("abs")
    numbaprims.dispatch.call.forget()
    assert not known("abs")
    same(numbaprims.abs(x), np.abs(x))


# ---------------------------------------------------------------- memory, threads, processes


def test_nothing_is_kept_or_lost():
    x, y, out = np.ones(9, np.float32), np.ones(9, np.float32), np.empty(9, np.float32)
    calls = (
        lambda: numbaprims.binary(x, y, "add"), lambda: numbaprims.binary(x, y, "add", out=out),
        lambda: numbaprims.topk(x, 2),
    )  # fmt: skip
    for call in calls:
        assert answered(call)[0]
        watched = (x, y, out, None, x.dtype, "add", numbaprims.binary, numbaprims.binary.__wrapped__)
        before = [sys.getrefcount(each) for each in watched]
        for _ in range(1000):
            call()
        after = [sys.getrefcount(each) for each in watched]
        assert all(abs(a - b) < 50 for a, b in zip(before, after, strict=True))
    with numbaprims.config(threads=1):
        override = numbaprims.settings._lookup()
        before = sys.getrefcount(override)
        for _ in range(1000):
            calls[0]()
        assert sys.getrefcount(override) - before < 50


def test_arrays_of_a_call_are_not_kept():
    class Watched:
        pass

    import weakref

    x = np.ones(9, np.float32)
    seen = weakref.ref(x)
    for _ in range(ENOUGH + 1):
        numbaprims.abs(x)
    del x
    gc.collect()
    assert seen() is None


def test_threads_that_learn_and_forget():
    """All of them often in the middle of it: what one reads without Python, others may not free."""

    def work(seed):
        rng = np.random.default_rng(seed)
        for k in range(300):
            x = rng.standard_normal((1 + k % 7, 1 + k % 5)).astype(np.float32)
            y = x[::-1]
            if not np.array_equal(numbaprims.binary(x, y, "add"), x + y):
                return False
            if not np.array_equal(numbaprims.scale(x, 0.5 * (k % 11)), x * np.float32(0.5 * (k % 11))):
                return False
            if seed == 0 and k % 10 == 0:
                numbaprims.dispatch.call.forget()
        return True

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_answers():
    x = np.float32([-1, 1])
    assert answered(lambda: numbaprims.abs(x))[0]
    child = os.fork()
    if child == 0:
        good = answered(lambda: numbaprims.abs(x), 0)[0] and (numbaprims.abs(x) == 1).all()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_tensors():
    torch = pytest.importorskip("torch")
    x, y = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 1.0])
    found, result = answered(lambda: numbaprims.binary(x, y, "add"))
    assert found and torch.equal(result, x + y)
    with pytest.raises(TypeError, match="grad"):
        numbaprims.binary(x.requires_grad_(), y, "add")
    with torch.no_grad():
        assert torch.equal(numbaprims.binary(x, y, "add"), x + y)
    with pytest.raises(TypeError):
        numbaprims.binary(x.detach(), y.numpy(), "add")
    parameter = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    with torch.no_grad():
        for _ in range(ENOUGH + 1):
            assert torch.equal(numbaprims.relu(parameter), parameter)
