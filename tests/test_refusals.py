"""What a first call refuses, a call whose kind is known refuses too, in the same words and before it writes."""

import copy
import functools
import inspect
import re

import numpy as np
import pytest
import rnn_cases
from solver_probes import FUNCTIONS, arguments, keywords

import numbaprims
from numbaprims.dispatch import call

WITH_OUT = [name for name in FUNCTIONS if "out" in inspect.signature(getattr(numbaprims, name)).parameters]


# gelu's gradient follows from x alone; labels and lengths may be any integers
NOT_READ = {("activation_backward", 2), *(("ctc_loss_backward", at) for at in (2, 3, 4))}


def misaligned(x):
    room = np.zeros(x.nbytes + 1, np.uint8)
    view = room[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def swapped(x):
    return x.astype(x.dtype.newbyteorder())


def repeated(x):
    """All of its elements are one."""
    return np.lib.stride_tricks.as_strided(np.zeros_like(x), x.shape, (0,) * x.ndim)


def cast(given, dtype):
    weights = (rnn_cases.cast(x, dtype) if isinstance(x, numbaprims.RnnWeights) else x for x in given)
    return tuple(x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x for x in weights)


def refusal(function, args, **words):
    try:
        function(*args, **words)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def bad_calls(name, args, result):
    """(what, arguments, out) of calls that differ from a good one in one thing."""
    yield "read-only out", args, read_only(result)
    if result.itemsize > 1:
        yield "misaligned out", args, misaligned(result)
        yield "out of another byte order", args, swapped(result)
    yield "out of another shape", args, result[..., :0]
    yield "out of another dtype", args, result.astype(np.float64 if result.dtype != np.float64 else np.float32)
    yield "out of a list", args, result.tolist()
    if result.size > 1:
        yield "out of one element", args, repeated(result)
    for i, x in enumerate(args):
        if not isinstance(x, np.ndarray) or (name, i) in NOT_READ:
            continue
        others = args[:i], args[i + 1 :]
        if x.itemsize > 1:
            yield f"argument {i} of another byte order", (*others[0], swapped(x), *others[1]), result
        yield f"argument {i} masked", (*others[0], np.ma.masked_array(x), *others[1]), result
        yield f"argument {i} is a list", (*others[0], x.tolist(), *others[1]), result
        if x.dtype == result.dtype and x.size > 1:  # of one element, it would end where out begins
            room = np.zeros(x.size + result.size + 1, x.dtype)
            mine = room[: x.size].reshape(x.shape)
            mine[...] = x
            yield (
                f"out overlaps argument {i}",
                (*others[0], mine, *others[1]),
                room[1 : 1 + result.size].reshape(result.shape),
            )


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", WITH_OUT)
def test_a_known_call_refuses_what_a_first_one_does(name, dtype):
    args, function = cast(arguments(name), dtype), functools.partial(getattr(numbaprims, name), **keywords(name))
    if name.startswith("random"):
        function = functools.partial(function, dtype=dtype)
    results = function(*args)
    result = np.array(results[0] if isinstance(results, tuple) else results, order="C")  # prelu's is for the first
    call.forget()
    bad = list(bad_calls(name, args, result))
    cold = [refusal(function, given, out=out) for _, given, out in bad]
    for _ in range(3):  # the third goes through native code, where there is any
        function(*args, out=np.empty_like(result))
        function(*args)
    for (what, given, out), said in zip(bad, cold, strict=True):
        before = copy.deepcopy(out)
        assert said != "accepted", f"{what} is accepted by a first call"
        assert refusal(function, given, out=out) == said, what
        np.testing.assert_array_equal(out, before, f"{what}: out was written to")


@pytest.mark.parametrize("value", [[1.5], np.ones(3, np.float32), {1.5: 2}], ids=["list", "array", "dict"])
def test_options_that_no_table_can_hold_are_refused_by_name(value):
    x, one = np.ones((2, 3, 8, 8), np.float32), np.ones(3, np.float32)
    for name, given, option in (
        ("softmax", (x,), "axis"), ("log_softmax", (x,), "axis"), ("layer_norm", (x,), "normalized_dims"),
        ("group_norm", (x,), "groups"), ("lrn", (x,), "size"), ("reduce", (x,), "op"), ("binary", (x, x), "op"),
        ("avg_pool", (x,), "kernel_size"), ("max_pool", (x, 2), "stride"), ("lp_pool", (x, 2), "p"),
        ("adaptive_avg_pool", (x,), "output_size"), ("global_avg_pool_backward", (x[..., :1, :1],), "size"),
        ("batch_norm", (x, one, one, one, one), "mode"), ("topk", (x,), "k"), ("cumsum", (x,), "axis"),
        ("one_hot", (np.array([1, 2]),), "depth"), ("quantize", (x, one), "axis"), ("concat", ((x, x),), "axis"),
        ("resize", (x,), "size"), ("gather", (x, np.array([1])), "axis"), ("stack", (x,), "operations"),
        ("stack", (x, ["relu/0"]), "most"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=rf"{option} (is|holds?) .*it must be"):
            getattr(numbaprims, name)(*given, **{option: value})


def test_arrays_in_the_place_of_flags_words_and_numbers_are_refused_by_name():
    x, wide, two = np.ones((4, 4), np.float32), np.ones((1, 2, 4, 4), np.float32), np.ones(2)
    weights = rnn_cases.cast(rnn_cases.draw_weights(np.random.default_rng(0), "lstm", inputs=4), np.float32)
    for name, given, options in (
        ("gemm", (x, x), "alpha beta"), ("gemv", (x, x[0]), "beta"), ("binary", (x, x, "add"), "alpha1 alpha2"),
        ("softplus", (x,), "beta threshold"), ("gelu", (x,), "approximate"), ("isinf", (x,), "detect_positive"),
        ("cumsum", (x,), "exclusive reverse"), ("topk", (x, 2), "largest"), ("attention", (wide,) * 3, "causal"),
        ("max_pool", (wide, 2), "ceil_mode return_indices"), ("avg_pool", (wide, 2), "count_include_pad"),
        ("resize", (wide, (2, 2)), "antialias align_corners"), ("pad", (x, 1), "mode"),
        ("group_norm", (wide, 2), "layout"), ("nll_loss", (x, np.zeros(4, int)), "reduction"),
        ("rope", (wide, x[:, :2], x[:, :2]), "interleaved"), ("find", ("ger", x[0], x[0]), "mode"),
        ("lstm", (wide[0], weights), "clip merge batch_first reverse"), ("lstm_train", (wide[0], weights), "dropout"),
    ):  # fmt: skip
        for option in options.split():
            with pytest.raises((TypeError, ValueError), match=rf"{option}( of \w+)? is array.*; (it|for|allowed)"):
                getattr(numbaprims, name)(*given, **{option: two})


def test_numbers_that_no_float_holds():
    x = np.ones((4, 4), np.float32)
    for name, given, option in (
        ("gemm", (x, x), "alpha"), ("leaky_relu", (x,), "negative_slope"), ("scale", (x,), "alpha"),
        ("layer_norm", (x,), "eps"), ("binary", (x, x, "add"), "alpha2"), ("quantize", (x,), "scale"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{option}.* is a number that float64 does not hold"):
            getattr(numbaprims, name)(*given, **{option: 10**400})


def test_integers_of_numpy_are_integers():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for name, option, value in (
        ("softmax", "axis", 1), ("layer_norm", "normalized_dims", 2),
        ("cumsum", "axis", 1), ("topk", "k", 2), ("group_norm", "groups", 3), ("group_norm", "groups", 1),
        ("group_norm_train", "groups", 1), ("lrn", "size", 3),
    ):  # fmt: skip
        words = [{option: kind(value)} for kind in (int, np.int64, np.int32)]
        wanted, *found = (np.asarray(getattr(numbaprims, name)(x, **each)[0]) for each in words)
        for one in found:
            np.testing.assert_array_equal(one, wanted)
    one = np.ones((2, 1), np.float32)
    wanted, found = (numbaprims.group_norm_backward(x, x, kind(1), None, one, one)[0] for kind in (int, np.int64))
    np.testing.assert_array_equal(found, wanted)
    wanted, found = (numbaprims.lrn(x, 3, before=kind(2)) for kind in (int, np.int8))
    np.testing.assert_array_equal(found, wanted)
    assert numbaprims.random_uniform((np.int8(100), np.int8(100)), seed=5).shape == (100, 100)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_factors_that_are_not_finite(value):
    x, one = np.ones((2, 3, 8), np.float32), np.ones(3, np.float32)
    for name, given, option in (
        ("layer_norm", (x,), "eps"), ("rms_norm", (x,), "eps"), ("instance_norm", (x,), "eps"),
        ("group_norm", (x, 1), "eps"), ("batch_norm", (x, one, one, one, one), "eps"),
        ("batch_norm_train", (x, one, one), "eps"), ("batch_norm_train", (x, one, one, one, one), "momentum"),
        ("lrn", (x, 3), "alpha"), ("lrn", (x, 3), "beta"), ("lrn_backward", (x, x, 3), "k"),
        ("attention", (x, x, x), "scale"),
    ):  # fmt: skip
        function = getattr(numbaprims, name)
        for _ in range(3):  # known calls too
            function(*given)
        with pytest.raises(ValueError, match=f"{option} is {value}; it must be finite"):
            function(*given, **{option: value})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_none_in_the_place_of_an_array_is_refused_by_name(name):
    args, function = arguments(name), getattr(numbaprims, name)
    for i, (x, argument) in enumerate(zip(args, inspect.signature(function).parameters, strict=False)):
        if isinstance(x, np.ndarray):
            said = refusal(functools.partial(function, **keywords(name)), (*args[:i], None, *args[i + 1 :]))
            assert re.match(rf"accepted|\w+: {argument} is|\w+: \w+ is a NoneType; it|\w+: without {argument}", said)


def test_shapes_of_convolutions_that_are_none():
    x, dy = np.ones((1, 2, 8, 8), np.float32), np.ones((1, 2, 6, 6), np.float32)
    with pytest.raises(ValueError, match=r"and kernel_shape \(1,\)"):
        numbaprims.conv_backward_weight(dy, x, (1,))
    with pytest.raises(TypeError, match="kernel_shape is None; it must be a sequence of integers"):
        numbaprims.conv_backward_weight(dy, x, None)
    with pytest.raises(TypeError, match="input_shape is .*; it must be made of integers"):
        numbaprims.conv_backward_data(dy, x[:, :, :3, :3], (1, 2, 8.0, 8))


def test_convolutions_that_no_memory_holds():
    x, w = np.ones((1, 2, 8, 8), np.float32), np.ones((2, 2, 3, 3), np.float32)
    with pytest.raises(ValueError, match="which no memory holds"):
        numbaprims.conv(x, w, padding=2**30)
    with pytest.raises(ValueError, match="stride is .*2147483647 is the most"):
        numbaprims.conv_transpose(x, w, stride=2**62)


def test_operations_of_stacks_by_texts_that_are_none():
    x = np.ones((1, 2, 4, 4), np.float32)
    for text in ("foo", "foo/0", "max/2x2", "least/2x2/1x1/0x0/0x0/1x1/0/1", "max/2x2/1x1/0x0/0x0/1x1/1"):
        with pytest.raises(ValueError, match=f"{text.partition('/')[0]}.*operation|window is one of"):
            numbaprims.stack(x, [text])
