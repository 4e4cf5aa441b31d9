"""Plans of recurrent networks: the bits of the call, for any steps, batch and lengths."""

import concurrent.futures
import pickle

import numpy as np
import pytest
from rnn_cases import DEFINITIONS, cast, draw_weights

import numbaprims
from numbaprims import settings
from numbaprims.dispatch.choose import Posed, Trial
from numbaprims.ops._rnn_pose import forward_of
from numbaprims.ops.rnn import PROBLEMS

#: What a network may be beside its cell; the words of its call.
NETWORKS = [
    ({"inputs": 37, "hidden": 21}, {}),
    ({"layers": 2, "directions": 2, "inputs": 8, "hidden": 18}, {"batch_first": True}),
    ({"layers": 2, "directions": 2, "hidden": 5, "merge": "sum", "bias": False}, {"merge": "sum"}),
    ({"skip": True, "inputs": 21, "hidden": 21, "layers": 2}, {"reverse": True, "clip": 0.7}),
    # sums of several blocks of k
    ({"inputs": 1100, "hidden": 17}, {}),
]


def sizes(rng, words, inputs, dtype):
    """Arrays of calls of several steps and batches, and their words."""
    for steps, batch in ((1, 1), (5, 1), (1, 7), (4, 3), (9, 20), (0, 2)):
        x = rng.standard_normal((batch, steps, inputs) if words.get("batch_first") else (steps, batch, inputs))
        for lengths in (None, rng.integers(0, steps + 1, batch)):
            yield x.astype(dtype), {"lengths": lengths}


def same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def check(rng, cell, after, network, words, dtype=np.float32):
    weights = cast(draw_weights(rng, cell, after=after, **network), dtype)
    function = getattr(numbaprims, cell.partition("_")[0])
    plan = function.plan(weights, **words)
    for ready in (plan, pickle.loads(pickle.dumps(plan))):
        for x, more in sizes(rng, words, weights.input_size, dtype):
            # packed weights are read by this solver alone
            with numbaprims.config(algorithm="rnn:persistent"):
                wanted = function(x, weights, **words, **more)
                for _ in range(3):
                    same(ready(x, **more), wanted)
                out = np.empty_like(wanted[0])
                assert ready(x, **more, out=out)[0] is out
                same([out], wanted[:1])


#: Layers, directions and orders are put together alike for every cell: two have every network, and every network has
#: one of the others; tests/test_contract.py has every cell in networks of each kind.
PAIRS = [
    pytest.param(*cell, which, marks=[pytest.mark.slow] * (at > 1 and which % 3 != at - 2))
    for at, cell in enumerate(DEFINITIONS)
    for which in range(len(NETWORKS))
]


@pytest.mark.parametrize(("cell", "after", "which"), PAIRS)
def test_the_bits_of_the_call(rng, cell, after, which):
    check(rng, cell, after, *NETWORKS[which])


def test_dtypes_projections_and_peepholes(rng):
    check(rng, "lstm", True, {"proj": 5, "hidden": 18, "layers": 2, "directions": 2}, {}, np.float64)
    check(rng, "lstm", True, {"peephole": True, "hidden": 33}, {}, np.float16)


def test_packed_rows_and_first_states(rng):
    weights = cast(draw_weights(rng, "lstm", hidden=9, layers=2), np.float32)
    plan = numbaprims.lstm.plan(weights)
    x, sizes = rng.standard_normal((9, 3)).astype(np.float32), [4, 3, 2]
    h0, c0 = (rng.standard_normal((2, 9, 4)).astype(np.float32).swapaxes(1, 2) for _ in range(2))
    same(plan(x, h0, c0, batch_sizes=sizes), numbaprims.lstm(x, weights, h0, c0, batch_sizes=sizes))
    # from one call to the next, as a decoder does
    states = h0[:, :1], c0[:, :1]
    whole, *last = plan(x[:, None], *states)
    for row, wanted in zip(x, whole, strict=True):
        y, *states = plan(row[None, None], *states)
        np.testing.assert_allclose(y[0], wanted, atol=1e-6)
    for a, b in zip(states, last, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_weights_are_those_of_the_plan(rng):
    weights = cast(draw_weights(rng, "gru"), np.float32)
    x, plan = np.ones((4, 2, 3), np.float32), numbaprims.gru.plan(weights)
    before, twice = plan(x), times(weights, 2)
    weights.parts[0].w_hh[:] = 0
    same(plan(x), before)
    plan.update(twice)
    same(plan(x), numbaprims.gru(x, twice))
    assert "gru plan, 1 layers, 1 directions, 3 -> 4, float32" in repr(plan)
    for other in (draw_weights(rng, "gru"), cast(draw_weights(rng, "gru", hidden=5), np.float32)):
        with pytest.raises(ValueError, match="this plan holds"):
            plan.update(other)
    same(plan(x), numbaprims.gru(x, twice))


def times(weights, factor):
    parts = tuple(type(part)(*(None if a is None else a * np.float32(factor) for a in part)) for part in weights.parts)
    return numbaprims.RnnWeights(weights.cell, parts)


def test_what_is_refused(rng):
    weights = cast(draw_weights(rng, "gru"), np.float32)
    with pytest.raises(TypeError, match="lstm takes RnnWeights of its cell"):
        numbaprims.lstm.plan(weights)
    with pytest.raises(ValueError, match="clip is -1"):
        numbaprims.gru.plan(weights, clip=-1)
    plan = numbaprims.gru.plan(weights)
    x, out = np.ones((4, 2, 3), np.float32), np.full((4, 2, 4), 7, np.float32)
    for ready in range(2):  # before and after the weights are packed
        for error, given, words in (
            (ValueError, (x[..., :2],), "the weights take 3 inputs"),
            (TypeError, (x.astype(np.float64),), "float64"),
            (ValueError, (x, np.ones((1, 3, 4), np.float32)), r"h0 is .* it must have shape \(1, 2, 4\)"),
            (TypeError, (x, None, np.ones((1, 2, 4), np.float32)), "c0 is given; gru has none"),
            (TypeError, ([1.0],), "x is a list"),
        ):
            with pytest.raises(error, match=words):
                plan(*given, out=out)
        with pytest.raises(ValueError, match="lengths"):
            plan(x, lengths=[5, 1], out=out)
        assert (out == 7).all() and (ready or plan(x))


def test_other_solvers_and_the_definition(rng):
    weights = cast(draw_weights(rng, "lstm", hidden=19, layers=2), np.float32)
    x, plan = rng.standard_normal((5, 3, 3)).astype(np.float32), numbaprims.lstm.plan(weights)
    plan(x)
    for words in ({"algorithm": f"rnn:{name}"} for name in ("single_gemm", "step_by_step", "naive")):
        with numbaprims.config(**words):
            same(plan(x), numbaprims.lstm(x, weights))
    with numbaprims.config(device="reference"):
        same(plan(x), numbaprims.lstm(x, weights))


@pytest.mark.parametrize(("quantize", "solvers"), [(None, {"persistent", "single_gemm"}), ("int8", {"persistent"})])
def test_find_poses_a_plan(rng, quantize, solvers):
    weights = cast(draw_weights(rng, "lstm", hidden=16), np.float32)
    x = np.ones((4, 2, 3), np.float32)
    problem = PROBLEMS["lstm"](x, weights)
    with settings.trial(Trial()), pytest.raises(Posed) as posed:
        numbaprims.lstm.plan(weights, quantize=quantize)(x)
    packed = posed.value.problem
    assert packed.weights == (quantize or "prepared") and packed.key() != problem.key()
    found = numbaprims.find(packed, store=False)
    assert solvers <= {f.algorithm for f in found if f.measured}


def test_several_threads(rng):
    weights = cast(draw_weights(rng, "lstm", hidden=40), np.float32)
    plan = numbaprims.lstm.plan(weights)
    xs = [rng.standard_normal((7, n, 3)).astype(np.float32) for n in (1, 2, 3, 5) * 4]
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        found = list(executor.map(plan, xs))
    for x, each in zip(xs, found, strict=True):
        with numbaprims.config(algorithm="rnn:persistent"):
            same(each, numbaprims.lstm(x, weights))
    same([y for y, *_ in plan.map(xs)], [y for y, *_ in found])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_scratch_memory_of_layers(rng, cell):
    """Layers behind the third take no more, and none reads what another has written over."""
    weights = [cast(draw_weights(rng, cell, layers=n, inputs=20, hidden=20), np.float32) for n in (3, 4, 7)]
    x = rng.standard_normal((6, 5, 20)).astype(np.float32)
    plans = [numbaprims.explain(cell, x, each, phases=True).program for each in weights]
    assert plans[0].shared == plans[1].shared == plans[2].shared
    function = getattr(numbaprims, cell)
    one_by_one = x
    for part in weights[2].parts:
        one_by_one, *_ = function(one_by_one, numbaprims.RnnWeights(cell, (part,)))
    np.testing.assert_array_equal(function(x, weights[2])[0], one_by_one)


def test_calls_of_many_arrays_are_known(rng):
    """Native code recognises a network of three layers, 24 arrays, by what they are, and reads what they hold now."""
    weights = cast(draw_weights(rng, "lstm", layers=3, inputs=4, hidden=4), np.float32)
    x, primitive = np.ones((2, 1, 4), np.float32), forward_of(3)
    primitive._known_calls.clear()
    for _ in range(3):
        numbaprims.lstm(x, weights)
    assert primitive._known_calls._tables
    primitive._unknown = None  # the way of calls that are not known
    try:
        before, *_ = numbaprims.lstm(x, weights)
        weights.parts[2].w_hh[:] *= -1
        after, *_ = numbaprims.lstm(x, weights)
    finally:
        del primitive._unknown
    wanted, *_ = numbaprims.lstm(x.copy(), numbaprims.RnnWeights("lstm", weights.parts))
    assert (after == wanted).all() and (before != after).any()


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_bits_do_not_depend_on_threads(rng, quantize):
    weights = cast(draw_weights(rng, "lstm", inputs=70, hidden=260, directions=2), np.float32)
    plan = numbaprims.lstm.plan(weights, quantize=quantize)
    x, lengths, found = rng.standard_normal((4, 19, 70)).astype(np.float32), np.arange(19) % 5, []
    for threads in (1, 2):
        with numbaprims.config(threads=threads):
            found.append(plan(x, lengths=lengths))
    same(*found)
