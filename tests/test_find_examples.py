"""The contract of a stem with `find` and `tune`: every problem is posed again from what a database keeps of it."""

import argparse
import importlib
import json

import numpy as np
import pytest
from helpers import has_module
from rnn_cases import cast, draw_weights

import numbaprims
from numbaprims.bench import cases
from numbaprims.cli import problems
from numbaprims.dispatch import call, examples, find
from numbaprims.dispatch.explain import problem_of
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.stems import ENGINES
from numbaprims.tuning import records

pytestmark = pytest.mark.cpu
X = np.ones(24, np.float32)


def ones(*shape, dtype="f32"):
    if dtype == "bf16":
        return np.ones(shape, importlib.import_module("ml_dtypes").bfloat16)
    return np.ones(
        shape, {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i8": np.int8, "u8": np.uint8}[dtype]
    )


LIES = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "gaps": lambda x: np.repeat(np.repeat(x, 2, -1), 2, -2)[..., ::2, ::2],
    "wide": lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 3)])[..., : x.shape[-1]],
    "turned": lambda x: x[..., ::-1, :],
}
DTYPES = ["f32", "f64", "f16", "i8", *(["bf16"] if has_module("ml_dtypes") else [])]


def gemms():
    for m, n, k in ((1, 1, 1), (1, 5, 3), (5, 1, 3), (7, 9, 1), (6, 8, 10)):
        for first in LIES.values():
            for second in LIES.values():
                for dtype in DTYPES:
                    a, b = first(ones(m, k, dtype=dtype)), second(ones(k, n, dtype=dtype))
                    yield "gemm", (a, b), {}
                    if dtype != "i8":
                        more = {"c": ones(m, n, dtype=dtype), "beta": 2.0, "alpha": 0.3, "activation": "gelu"}
                        more["bias"] = ones(*((n,) if m == n == 1 else (m, 1)), dtype=dtype)
                        yield "gemm", (a, b), {**more, "out": first(ones(m, n, dtype=dtype)).copy("K")}
    yield "gemm", (ones(4, 3, 5), ones(4, 5, 6)), {"activation": ("leaky_relu", {"negative_slope": 0.3})}
    yield "gemm", (ones(2, 4, 3, 5), ones(4, 5, 6)), {"trans_a": False}
    yield "linear", (ones(9, 5), ones(3, 5), ones(3)), {"activation": "relu"}
    yield "gemm", (ones(9, 5, dtype="i8"), ones(5, 3, dtype="i8")), {"bias": np.ones(3, np.int32), "activation": "relu"}
    for bias in (None, np.ones(3, np.int32)):
        a, b = ones(9, 5, dtype="u8"), ones(5, 3, dtype="i8")
        yield "qlinear_gemm", (a, 0.5, 1, b, 0.5, 0, 0.5, np.int8(1), bias), {}
    yield "gemm", (ones(9, 5, dtype="f16"), ones(5, 3, dtype="f16")), {"out_dtype": "f32"}


def gemvs():
    for m, n in ((1, 1), (1, 5), (5, 1), (7, 9)):
        for lie in LIES.values():
            for dtype in DTYPES[:3]:
                yield "gemv", (lie(ones(m, n, dtype=dtype)), ones(n, dtype=dtype)), {}
                more = {"trans": True, "y": ones(n, dtype=dtype), "beta": 0.5}
                yield "gemv", (lie(ones(m, n, dtype=dtype)), ones(2 * m, dtype=dtype)[::2]), more


def gers():
    for m, n in ((1, 1), (1, 5), (5, 1), (7, 9)):
        x, y = ones(m), ones(n)
        yield "ger", (x, y), {}
        for lie in LIES.values():
            yield "ger", (x, y), {"out": lie(ones(m, n))}
            for other in LIES.values():
                yield "ger", (x, y), {"a": other(ones(m, n)), "out": lie(ones(m, n)).copy("K")}


def activations():
    shapes = [
        ones(6, 8),
        ones(1, 8),
        ones(6, 8)[:, ::2],
        LIES["wide"](ones(6, 8)),
        ones(6, 8).T,
        ones(1),
        ones(2, 4, 6),
    ]
    for kind in KINDS:
        for x in shapes:
            given = [{"threshold": {"threshold": 1.0, "value": 0.0}, "prelu": {"weight": ones(1)}}.get(kind, {})]
            given += {"softplus": [{"beta": 3.0}], "power": [{"gamma": 2.0}, {"gamma": 1.5}]}.get(kind, [])
            given += [{"approximate": "tanh"}] if kind == "gelu" else []
            given += [{"weight": ones(x.shape[1])}] if kind == "prelu" and x.ndim > 1 and x.shape[1] > 1 else []
            if kind == "glu":
                if x.shape[-1] % 2 == 0:
                    yield "activation", (x, kind), {}
                    yield "activation_backward", (x[..., : x.shape[-1] // 2], x, None, kind), {}
                continue
            for words in given:
                yield "activation", (x, kind), words
                yield "activation", (x, kind), {**words, "out": x}
                yield "activation_backward", (x, x, x, kind), words
                yield "activation_backward", (x, x.copy(), x.copy(), kind), {**words, "out": x}


def convs():
    x, w = ones(2, 4, 9, 7), ones(6, 2, 3, 3)
    words = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    y = numbaprims.conv(x, w, **words)
    yield "conv", (x, w), words
    yield "conv", (x, w, ones(6)), {**words, "activation": "relu"}
    yield "conv", (x.transpose(0, 2, 3, 1).copy(), w), {**words, "layout": "NHWC"}
    yield "conv_backward_data", (y, w, x.shape), words
    yield "conv_backward_weight", (y, x, w.shape), words
    yield "conv_backward_bias", (y,), {}
    yield "conv_transpose", (ones(2, 4, 5), ones(4, 3, 3)), {"stride": 2, "padding": 1, "output_padding": 1}
    yield "conv", (ones(1, 3, 4, 5, 6, dtype="f64"), ones(2, 3, 2, 2, 2, dtype="f64")), {"padding": 1}


def recurrents():
    """Packed rows and dropout; the others: test_contract.py."""
    for kind, dtype in (("lstm", "f32"), ("gru", "f64"), ("rnn_tanh", "f16"), ("rnn_relu", "f32")):
        cell, directions = kind.partition("_")[0], 2 if kind == "lstm" else 1
        weights = draw_weights(
            np.random.default_rng(0), kind, layers=2, directions=directions, proj=2 * (kind == "lstm")
        )
        weights = cast(weights, ones(1, dtype=dtype).dtype)
        for words in ({"lengths": [2, 5, 3]}, {"batch_sizes": [3, 2, 1]}):
            x = ones(6, 3, dtype=dtype) if "batch_sizes" in words else ones(5, 3, 3, dtype=dtype)
            yield cell, (x, weights), words
            y, *states, reserve = getattr(numbaprims, f"{cell}_train")(x, weights, **words, dropout=0.5)
            yield f"{cell}_train", (x, weights), {**words, "dropout": 0.5}
            yield f"{cell}_backward", (y, *states, reserve), {}


def randoms(dtype="f32"):
    for take in (np.s_[:], np.s_[:, 3:60], np.s_[:, ::2]):
        yield "dropout", (ones(7, 64, dtype=dtype)[take],), {"seed": 3}
        for kind in ("uniform", "normal"):
            yield f"random_{kind}", (), {"seed": 3, "out": ones(7, 64, dtype=dtype)[take]}


def ctcs():
    for dtype in ("f32", "f64", "f16"):
        x = ones(9, 3, 5, dtype=dtype)
        for view in (x, ones(9, 3, 10, dtype=dtype)[..., ::2]):
            given = (view, [[1, 2], [3, 4], [1, 1]], [9, 8, 0], [2, 1, 0])
            yield "ctc_loss", given, {"blank": 0}
            yield "ctc_loss_backward", (ones(3, dtype=dtype), *given), {"logits": dtype == "f32"}
            yield "ctc_greedy_decode", (view,), {}
            yield "ctc_beam_search_decode", (view,), {"beam_width": 4, "paths": 2}


def quantized():
    x, b = ones(33, 64), ones(33, 64, dtype="u8")
    for view in (x, x.T, x[:, ::2], ones(33, 64, dtype="f16")):
        yield "quantize", (view, 0.5), {"dtype": "int8"}
        yield "quantize", (view, 0.5), {"dtype": "int4"}
        yield "dynamic_quantize", (view,), {"axis": 1, "symmetric": True}
    yield "dequantize", (b, ones(33, 1)), {"out_dtype": "float16"}
    yield "qlinear_add", (b, 0.5, 3, b[0], 0.5, 3, 0.5, np.int8(3)), {"activation": "relu"}
    yield "qlinear_activation", (b[:, ::2], "tanh", 0.5, 3, 0.5, np.int8(3)), {}
    yield "gemm_integer", (b, ones(64, 5, dtype="u8"), 3, 4), {}


CALLS = {
    "quantize": quantized,
    "random": randoms,
    "ctc": ctcs,
    "rnn": recurrents,
    "gemm": gemms,
    "gemv": gemvs,
    "ger": gers,
    "activation": activations,
    "conv": convs,
}


def test_every_stem_is_held_to_it():
    own = ("stack", "lrn", "resize", "attention", "gather", "rope", "scan", "topk")  # the others: test_contract.py
    assert {*CALLS, *ENGINES, *own} == set(cases.STEMS)


@pytest.mark.parametrize("stem", CALLS)
def test_every_problem_of_a_stem_is_posed_again_from_what_is_stored(stem):
    seen = {}
    for function, args, kwargs in CALLS[stem]():
        problem = problem_of(function, *args, **kwargs)
        seen.setdefault(records.dump(records.fields_of(problem)), problem)
    assert len(seen) >= 8
    for text, problem in seen.items():
        again = examples.restore(stem, json.loads(text))
        assert again.key() == problem.key() and hash(again) == hash(problem)


def test_the_gradient_of_a_slope_is_found_among_two_problems():
    posed = []
    real = call.bind
    x = ones(2, 3, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, "bind", lambda problem, *a, **k: posed.append(problem) or real(problem, *a, **k))
        numbaprims.prelu_backward(x, x, ones(3))
        numbaprims.prelu_backward(ones(6, 3), ones(6, 3), ones(3))
        numbaprims.prelu_backward(x[:, :, ::2], x[:, :, ::2], ones(3))
        numbaprims.prelu_backward(x, x, ones(1))
    weights = [problem for problem in posed if problem.direction == "weight"]
    assert len(weights) == 4 and len({p.layout for p in weights}) == 3
    for problem in weights:
        assert examples.restore("activation", records.fields_of(problem)).key() == problem.key()
    found = numbaprims.find(weights[0], store=False)
    assert "channel_sums" in [f.algorithm for f in found]


def test_what_no_call_poses_is_refused():
    good = records.fields_of(problem_of("ger", X, X))
    with pytest.raises(ValueError, match="no call of this release poses the ger problem"):
        examples.restore("ger", {**good, "order": "diagonal"})
    with pytest.raises(ValueError, match="no field 'colour'"):
        examples.restore("ger", {**good, "colour": "red"})
    for stem in ("nothing", "../os", "examples"):
        with pytest.raises(ValueError, match="there is no stem"):
            examples.restore(stem, good)


@pytest.mark.parametrize("stem", cases.STEMS)
def test_find_holds_every_solver_of_a_stem_to_the_definition(stem, monkeypatch):
    """As `numbaprims find STEM --shapes quick --check` does, of the first problem forward and the first backward; their
    times do not matter."""
    monkeypatch.setattr(find, "_FIND", find.Schedule(rounds=1, min_rounds=1))
    parser = argparse.ArgumentParser()
    problems.add_arguments(parser)
    for way in ([], ["--backward"]):
        problem = problems.problems(stem, parser.parse_args(["--shapes", "quick", *way]))[0]
        for found in numbaprims.find(problem, check=True, store=False):
            assert not found.note.startswith(("wrong", "failed")), (problem.bench_command(), found)


@pytest.mark.filterwarnings("error")
def test_solvers_that_refuse_an_example_are_not_timed_by_it():
    """The strides of a problem are stored by nobody: its example has gaps where an operand is transposed."""
    x = np.random.default_rng(0).standard_normal((33, 77), np.float32)
    problem = problem_of("binary", x, np.asfortranarray(x), "sub")
    notes = {found.algorithm: found.note for found in numbaprims.find(problem, check=True, store=False)}
    assert notes["bands"].startswith("failed: ValueError: tensor:bands was asked for, but of the example's arrays")
    assert notes["blocks"] == ""
