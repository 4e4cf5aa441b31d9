"""What every primitive that is a formula, and every recurrent network, promises: the calls stand in contract.py."""

import contextlib
import functools
import inspect

import numpy as np
import pytest
from contract import CALLS, Call, flat, made, run
from helpers import (
    LAYOUTS,
    NUMPY_FLOATS,
    OUT_LAYOUTS,
    PRECISION,
    assert_close,
    assert_near,
    has_module,
    in_turn,
    lay_out,
    nan_filled,
    printed_with_threads,
    to_float64,
)

import numbaprims
from numbaprims import arrays
from numbaprims.dispatch import examples, registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.stems import ENGINES, PUBLIC
from numbaprims.tuning import records

FUNCTIONS = sorted({call.function for call in CALLS})
#: Those that can write to an array of the caller's: losses cannot.
WRITING = [name for name in FUNCTIONS if "out" in inspect.signature(getattr(numbaprims, name)).parameters]
WRITING = [name for name in WRITING if name not in ("isnan", "isinf")]  # bool: tests/test_tensor.py
#: The calls of one launch: any solver may be forced to make it.
SINGLE = [call for call in CALLS if call.single]


def of(function: str) -> Call:
    """The first call of a function."""
    return next(call for call in CALLS if call.function == function)


def expected(call: Call, args, words):
    """The float64 definition of the very operands, before it is rounded to a dtype."""
    wide = {}

    def widen(x):
        if isinstance(x, list):
            return [widen(each) for each in x]
        if not hasattr(x, "dtype"):
            return x
        storage, dtype, _ = arrays.enter(x, "x")
        if dtype == "bool":
            return x
        return wide.setdefault(id(x), storage if dtype in ("i64", "i32") else np.asarray(to_float64(storage, dtype)))

    with numbaprims.config(device="reference"):
        return run(call, tuple(map(widen, args)), {name: widen(x) for name, x in words.items() if name != "out"})


def check(call: Call, results, wanted, dtype="f32"):
    coarse = call.stored * PRECISION[dtype].out
    for have, want in zip(results, wanted, strict=True):
        storage, dtype, _ = arrays.enter(have, "result")
        if dtype in ("i8", "i64", "bool"):
            np.testing.assert_array_equal(storage, want)
        elif call.relative:
            assert_near(storage, want, dtype, call.k)
        else:
            assert_close(
                storage,
                want,
                k=call.k,
                dtype=dtype,
                coarse=coarse,
                vacuous=not np.isfinite(want).all() or not want.any(),
            )


def identify(calls):
    return {"argvalues": calls, "ids": [str(call) for call in calls]}


# ---------------------------------------------------------------- values


@functools.cache
def shown_by(function):
    """(solver, configuration) -> the first call of a function that has it."""
    found = {}
    for call in SINGLE:
        if call.function == function:
            args, words = call.given(*made(call, "f32"))
            problem, where = problem_of(function, *args, **words), registry.target(device())
            for solver in registry.solvers(problem.stem, device()):
                if solver.why_not(problem, where) is None:
                    for config in solver.configs(problem, where):
                        found.setdefault((solver.name, str(config)), call)
    return found


@pytest.mark.parametrize("call", **identify(SINGLE))
def test_every_solver_gives_the_definition(call, request):
    """Of each solver the configuration that it would take; the others with the first call that has them: how elements
    are stored does not depend on what is computed, and kernels of all took a seventh of this test's time."""
    args, words = made(call, "f32")
    wanted = expected(call, args, words)
    args, words = call.given(args, words)
    problem = problem_of(call.function, *args, **words)
    where = device()
    took = 0
    for solver in registry.solvers(problem.stem, where):
        if solver.why_not(problem, registry.target(where)) is None:
            took += 1
            for at, config in enumerate(solver.configs(problem, registry.target(where))):
                if at and shown_by(call.function)[solver.name, str(config)] is not call:
                    if not request.config.option.slow:
                        continue
                with numbaprims.settings.trial(examples._choose.Trial(problem.stem, dumped(problem), solver, config)):
                    check(call, flat(getattr(numbaprims, call.function)(*args, **words)), wanted)
    alone = where != "cpu" or (problem.stem != "rnn" and getattr(problem, "layout", "") == "strided")
    assert took >= 2 - alone


def device() -> str:
    return numbaprims.settings.current().device or "cpu"


def dumped(problem):
    return records.dump(records.fields_of(problem))


@pytest.mark.parametrize("call", **identify([call for call in CALLS if not call.single]))
def test_calls_of_several_launches_give_the_definition(call):
    args, words = made(call, "f32")
    check(call, run(call, args, words), expected(call, args, words))


#: The two types of 16 bits differ in how they are read and written: functions take them in turn.
TYPES = [*((function, "f64") for function in FUNCTIONS), *in_turn(FUNCTIONS, NUMPY_FLOATS[:1:-1])]


@pytest.mark.parametrize(("function", "dtype"), TYPES)
def test_the_other_types(function, dtype):
    call = of(function)
    args, words = made(call, dtype, seed=1)
    check(call, run(call, args, words), expected(call, args, words), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_layout(function, layout):
    call = of(function)
    args, words = made(call, "f32", layout=layout)
    check(call, run(call, args, words), expected(call, args, words))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_that_are_no_numbers(function):
    call = of(function)
    args, words = made(call, "f32")
    # an infinite gradient times p - q is NaN or not by the order of the factors
    x = args[1 if function == "softmax_cross_entropy_backward" else 0]
    for at, value in enumerate((np.nan, np.inf, -np.inf)):
        x.reshape(-1)[at * 2 % x.size] = value
    with np.errstate(all="ignore"):
        for have, want in zip(run(call, args, words), expected(call, args, words), strict=True):
            assert (np.isnan(have) == np.isnan(want)).all(), "NaN is where the definition has it"
            assert (np.isinf(have) == np.isinf(want)).all()


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_tensors_give_tensors(function):
    import torch

    call = of(function)
    plain = run(call, *made(call, "f32"))
    for have, want in zip(run(call, *made(call, "f32", "torch")), plain, strict=True):
        assert type(have) is torch.Tensor
        np.testing.assert_array_equal(have.numpy(), want)


# ---------------------------------------------------------------- out


@pytest.mark.parametrize("layout", OUT_LAYOUTS)
@pytest.mark.parametrize("function", WRITING)
def test_out_may_lie_anyhow(function, layout):
    call = of(function)
    args, words = made(call, "f32")
    plain = run(call, args, words)
    out = nan_filled(plain[0].shape, "f32", layout)
    if call.stored and device() != "cpu" and layout in ("F", "negative", "sliced"):
        with pytest.raises(ValueError, match="on a GPU its last dimension must be contiguous"):
            run(call, args, {**words, "out": out})
        return
    again = run(call, args, {**words, "out": out})
    assert again[0] is out
    check(call, again, [to_float64(x) for x in plain])


@pytest.mark.parametrize("function", WRITING)
def test_out_is_checked_before_it_is_written(function):
    call = of(function)
    args, words = made(call, "f32")
    (plain, *_) = run(call, args, words)
    for wrong, error in (
        (np.full((*plain.shape, 2), 7, np.float32), ValueError),
        (np.full(plain.shape, 7, np.float64), TypeError),
        (lay_out(np.full(plain.shape, 7, np.float32), "readonly"), ValueError),
    ):
        with pytest.raises(error, match="out"):
            run(call, args, {**words, "out": wrong})
        assert (wrong == 7).all()
    memory = np.zeros(args[0].size + plain.size, np.float32)
    x, out = memory[: args[0].size].reshape(args[0].shape), memory[1 : 1 + plain.size].reshape(plain.shape)
    x[...] = args[0]
    before = memory.copy()
    with pytest.raises(ValueError, match="memory"):
        run(call, (x, *args[1:]), {**words, "out": out})
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("function", ["softmax", "log_softmax", "softmax_backward", "log_softmax_backward"])
def test_in_place_gives_the_same_bits(function):
    for call in CALLS:
        if call.function == function:
            args, words = made(call, "f32")
            (want,) = run(call, args, words)
            for at in range(len(args)):
                for view in (False, True):
                    inputs = [x.copy() for x in args]
                    run(call, inputs, {**words, "out": inputs[at][:] if view else inputs[at]})
                    np.testing.assert_array_equal(inputs[at], want)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_cannot_be_computed_is_refused(function):
    call = of(function)
    args, words = made(call, "f32")
    if function in ("cast", "transform", "gather", "embedding", "pad", "split"):
        pytest.skip("it takes every type")
    refused = {"binary": np.int64, "cumsum": np.uint8, "cumprod": np.uint8, "topk": np.uint8}.get(function, np.int32)
    with pytest.raises(TypeError, match="takes float64, float32, float16, bfloat16"):
        run(call, tuple(x.astype(refused) if getattr(x, "dtype", None) == np.float32 else x for x in args), words)
    with pytest.raises(TypeError, match="must be"):
        run(call, (args[0].tolist(), *args[1:]), words)
    if len(args) > 1 and isinstance(args[1], np.ndarray):
        with pytest.raises((TypeError, ValueError)):
            run(call, (args[0], np.zeros((2, 3, 5), args[1].dtype), *args[2:]), words)


# ---------------------------------------------------------------- choice, databases, threads


@pytest.mark.parametrize("call", **identify(CALLS))
def test_a_problem_is_posed_again_from_what_is_stored(call):
    for layout in ("C", "padded", "sliced"):
        args, words = made(call, "f32", layout=layout)
        args, words = call.given(args, words)
        problem = problem_of(call.function, *args, **words)
        again = examples.restore(problem.stem, examples.records.fields_of(problem))
        assert again.key() == problem.key()


@pytest.mark.cpu  # on a GPU one thread a row is the quicker way of some of these few elements
@pytest.mark.parametrize("call", **identify(CALLS))
def test_contiguous_operands_never_take_the_slow_way(call):
    args, words = made(call, "f32")
    if args[0].size < 64:
        pytest.skip("it takes some ns whatever the way")
    args, words = call.given(args, words)
    assert numbaprims.explain(call.function, *args, **words).chosen.solver != "naive"


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, sys
sys.path.insert(0, "tests")
import numbaprims
rng = np.random.default_rng(0)
x, wide, image = (rng.standard_normal(s, np.float32) for s in ((3, 70000), (300, 1000), (8, 32, 40, 41)))
one = np.ones(32, np.float32)
found = [numbaprims.softmax(x), numbaprims.softmax(wide, axis=0), numbaprims.log_softmax(wide),
         *numbaprims.batch_norm_train(image, one, one), numbaprims.batch_norm(image, one, one, one, one),
         *numbaprims.batch_norm_train(image.reshape(-1, 32), one, one, layout="NHWC"),
         *numbaprims.batch_norm_backward(image, image, one, one, one),
         *numbaprims.layer_norm_train(wide), *numbaprims.rms_norm_train(x), *numbaprims.group_norm_train(image, 4),
         *numbaprims.layer_norm_backward(wide, wide, wide[0], wide[:, :1], wide[:, :1]),
         *numbaprims.group_norm_backward(image, image, 4, one, wide[:8, :4].copy(), wide[:8, :4].copy()),
         *numbaprims.group_norm_train(image.reshape(8, 40, 41, 32), 4, layout="NHWC"),
         numbaprims.softmax_cross_entropy(wide, np.arange(300))]
steps, rows = wide.reshape(20, 150, 100), rng.standard_normal((160, 140), np.float32) / 12
for cell in ("lstm", "gru", "rnn_tanh"):
    many, name = {"lstm": 160, "gru": 120}.get(cell, 40), cell.partition("_")[0]
    weights = numbaprims.RnnWeights.from_arrays(cell, [rows[:many, :100]] * 2, [rows[:many, 100:]] * 2, directions=2)
    *made, reserve = getattr(numbaprims, name + "_train")(steps, weights, lengths=np.arange(150) % 21)
    *gradients, parts = getattr(numbaprims, name + "_backward")(*made, reserve)
    found += [*made, *gradients, *(x for part in parts for x in part if x is not None)]
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


# ---------------------------------------------------------------- gradients


def spatial(args, words):
    """The sizes of x's planes."""
    return args[0].shape[1:-1] if words.get("layout") == "NHWC" else args[0].shape[2:]


def norm_gradient(kind, dy, args, y, words):
    """By the statistics that the forward call gave; a sum that it returned is what was normalised."""
    words = {name: value for name, value in words.items() if name != "eps"}
    x = y[-1] if words.pop("residual", None) is not None else args[0]
    number = args[1:2] if kind == "group" else ()
    weight, bias = (*args[1 + len(number) :], None, None)[:2]
    saved = y[1:2] if kind == "rms" else (*y[1:3], bias)
    return getattr(numbaprims, f"{kind}_norm_backward")(dy, x, *number, weight, *saved, **words)


#: Function -> (what differentiates it, from dy, the operands and the results; which operands that is for).
GRADIENTS = {
    "dropout": (lambda dy, args, y, words: numbaprims.dropout_backward(dy, **words), 1),
    "softmax": (lambda dy, args, y, words: numbaprims.softmax_backward(dy, y[0], **words), 1),
    "log_softmax": (lambda dy, args, y, words: numbaprims.log_softmax_backward(dy, y[0], **words), 1),
    "softmax_cross_entropy": (
        lambda dy, args, y, words: numbaprims.softmax_cross_entropy_backward(dy, *args, **words), 1,
    ),
    "nll_loss": (lambda dy, args, y, words: numbaprims.nll_loss_backward(dy, *args, **words), 1),
    "lrn": (lambda dy, args, y, words: numbaprims.lrn_backward(dy, *args, **words), 1),
    "resize": (lambda dy, args, y, words: numbaprims.resize_backward(dy, args[0].shape, **words), 1),
    "gather": (
        lambda dy, args, y, words: numbaprims.gather_backward(dy, args[1], args[0].shape[args[2]], args[2]), 1,
    ),
    "embedding": (lambda dy, args, y, words: numbaprims.embedding_backward(dy, args[1], len(args[0]), **words), 1),
    "pad": (lambda dy, args, y, words: numbaprims.pad_backward(dy, args[0].shape, *args[1:]), 1),
    "rope": (lambda dy, args, y, words: numbaprims.rope_backward(dy, *args[1:], **words), 1),
    "ctc_loss": (lambda dy, args, y, words: numbaprims.ctc_loss_backward(dy, *args, **words), 1),
    "max_pool": (lambda dy, args, y, words: numbaprims.max_pool_backward(dy, *args, **words), 1),
    "avg_pool": (
        lambda dy, args, y, words: numbaprims.avg_pool_backward(dy, spatial(args, words), args[1], **words), 1,
    ),
    "lp_pool": (lambda dy, args, y, words: numbaprims.lp_pool_backward(dy, args[0], y[0], args[1], **words), 1),
    "adaptive_max_pool": (lambda dy, args, y, words: numbaprims.adaptive_max_pool_backward(dy, args[0], **words), 1),
    "global_max_pool": (lambda dy, args, y, words: numbaprims.global_max_pool_backward(dy, args[0], **words), 1),
    "adaptive_avg_pool": (
        lambda dy, args, y, words: numbaprims.adaptive_avg_pool_backward(dy, spatial(args, words), **words), 1,
    ),
    "global_avg_pool": (
        lambda dy, args, y, words: numbaprims.global_avg_pool_backward(dy, spatial(args, words), **words), 1,
    ),
    "attention": (
        lambda dy, args, y, words: numbaprims.attention_backward(
            dy, *args, *numbaprims.attention_train(*args, **words), **words
        ), 3,
    ),
    "stack": (
        lambda dy, args, y, words: numbaprims.stack_backward(
            dy, *args, layout=words.get("layout", "NCHW"), of_parameters=()
        ), 1,
    ),
    "layer_norm_train": (lambda dy, args, y, words: norm_gradient("layer", dy, args, y, words), 3),
    "rms_norm_train": (lambda dy, args, y, words: norm_gradient("rms", dy, args, y, words), 2),
    "instance_norm_train": (lambda dy, args, y, words: norm_gradient("instance", dy, args, y, words), 3),
    "group_norm_train": (lambda dy, args, y, words: norm_gradient("group", dy, args, y, words), 3),
    "batch_norm_train": (
        lambda dy, args, y, words: numbaprims.batch_norm_backward(dy, *args[:2], *y[1:3], args[2], **words), 3,
    ),
}  # fmt: skip
TRAINED = [f"{cell}_train" for cell in ("lstm", "gru", "rnn")]


def of_network(call: Call):
    """What differentiates a recurrent network in training, by all that it is given."""
    name = call.function.replace("_train", "_backward")
    gradient = next(other for other in CALLS if (other.function, other.label) == (name, call.label))
    states = [None] * (2 if name.startswith("lstm") else 1)
    return lambda dy, args, y, words: run(gradient, (dy, *states, *args), words), None


@pytest.mark.parametrize("call", **identify([c for c in CALLS if c.function in (*GRADIENTS, *TRAINED)]))
def test_gradients_are_those_of_finite_differences(call):
    """Of each function's first call those of the kernels, of the others those of the definitions, which every solver is
    held to above: kernels in float64 of all calls took a sixth of this file's time."""
    kernels = call is of(call.function) or device() != "cpu"
    with contextlib.nullcontext() if kernels else numbaprims.config(device="reference"):
        finite_differences(call)


def finite_differences(call):
    args, words = made(call, "f64", seed=3)
    rng = np.random.default_rng(4)
    results = run(call, args, words)
    backward, count = of_network(call) if call.function in TRAINED else GRADIENTS[call.function]
    dy = np.asarray(rng.standard_normal(results[0].shape))
    found = backward(dy, args, results, words)
    found = found if isinstance(found, tuple) else (found,)
    operands = [at for at, x in enumerate(args) if isinstance(x, np.ndarray)]
    for at, dx in zip(operands, [dx for dx in found if dx is not None], strict=False):
        step = rng.standard_normal(args[at].shape)
        if call.function != "batch_norm_train" and call.function.startswith("nll"):
            step = np.asarray(step)
        eps = 1e-5

        def loss(shift, at=at, step=step):
            moved = (*args[:at], args[at] + shift * step, *args[at + 1 :])
            return float((run(call, moved, words)[0] * dy).sum())

        slope = (loss(eps) - loss(-eps)) / (2 * eps)
        assert abs(slope - float((dx * step).sum())) <= 1e-6 * (1 + abs(slope)), f"operand {at}"
    assert len(found) == (count or len(args))


def test_every_function_is_held_to_it():
    stems = (*ENGINES, "stack", "rnn", "lrn", "resize", "random", "attention", "ctc", "gather", "rope", "scan", "topk")
    # random numbers are functions of no array; fill writes its argument, concat is many calls of cast; labels are no
    # numbers, nor are quantised integers: test_random.py, test_tensor.py, test_ctc.py, test_quantize.py; one_hot
    # takes no floats: test_gather.py
    own = (
        "random_uniform", "random_normal", "fill", "concat", "ctc_greedy_decode", "ctc_beam_search_decode", "one_hot",
        *PUBLIC["quantize"],
    )  # fmt: skip
    assert sorted(name for stem in stems for name in PUBLIC[stem] if name not in own) == FUNCTIONS
    with_gradient = {name for name in FUNCTIONS if f"{name}_backward" in FUNCTIONS}
    trained = {name for name in (*GRADIENTS, *TRAINED) if name.endswith("_train")}
    assert with_gradient == {*GRADIENTS, *(name.removesuffix("_train") for name in trained)} - trained
