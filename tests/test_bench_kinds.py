"""The benchmarks of softmax, batch normalisation and pooling: their cases, contenders, and the lines that name them."""

import argparse
import math

import numpy as np
import pytest
from contract import CALLS, made
from test_bench import chosen, command_of

import numbaprims
from numbaprims.bench import cases, runner
from numbaprims.bench.cases import OURS
from numbaprims.bench.problems import problem_of_case
from numbaprims.bench.stems import attention
from numbaprims.cli import problems
from numbaprims.dispatch.explain import problem_of
from numbaprims.stems import STEMS

SMALL = [
    "softmax --shapes quick --kind softmax,log_softmax,cross_entropy,nll_loss",
    "softmax --shapes quick --kind softmax,log_softmax,cross_entropy,nll_loss --backward",
    "softmax --shapes 33x77 --dtype f64,bf16,f16 --kind softmax,cross_entropy",
    "softmax --shapes 33x77 --dtype f64,bf16,f16 --kind softmax,cross_entropy --backward",
    "batch_norm --shapes quick",
    "batch_norm --shapes quick --layout NHWC",
    "batch_norm --shapes 2x5x3x3 --dtype f64,bf16,f16",
    "norm --shapes quick",
    "norm --shapes quick --backward",
    "norm --shapes 33x77 --dtype f64,bf16,f16",
    "norm --shapes 2x5x7x3 --groups 5 --layout NHWC",
    "norm --shapes 2x6x7x3 --groups 3 --layout NHWC --backward",
    "gather --shapes quick",
    "gather --shapes quick --backward",
    "gather --shapes 2x7x3x5 --dtype f64,bf16,f16 --kind gather,split",
    "tensor --shapes quick --kind transform,transform-back,transform-heads,concat",
    "tensor --shapes 33x77,3x5x7x9 --dtype f64,bf16,f16,int8 --kind transform,transform-back,transform-heads,concat",
    "resize --shapes 1x3x1x4x5x1x8x10 --kind nearest,linear --layout NHWC",
    "resize --shapes 1x3x1x4x5x1x8x10 --kind nearest,linear --layout NHWC --backward",
    "quantize --shapes quick",
    "attention --shapes 3x4x2x5x8x8",
    "attention --shapes 3x4x2x5x8x8 --backward",
    "attention --shapes 3x4x2x5x8x8 --dtype f64,bf16,f16 --kind causal,padded,windows",
    "ctc --shapes 9x3x5x2 --dtype bf16,f16",
    "ctc --shapes 9x3x5x2 --dtype bf16,f16 --kind loss --backward",
    "random --shapes quick",
    "random --shapes 5003 --dtype f64,bf16,f16",
    "pooling --shapes quick",
    "pooling --shapes quick --backward",
    "pooling --shapes 2x20x9x7x3x3,1x3x5x6x7x2x3x2 --layout NHWC --kind max,avg,global_avg",
    "pooling --shapes 2x20x9x7x3x3,1x3x5x6x7x2x3x2 --layout NHWC --kind max,avg,global_avg --backward",
    "pooling --shapes 2x20x9x7x3x3 --dtype f64,bf16,f16,int8 --kind max",
]


@pytest.mark.parametrize("words", SMALL)
def test_every_contender_computes_the_case(words):
    """Rivals and ours, in the very form that is timed, against the float64 definition."""
    for case in chosen(*words.split()):
        work = cases.stem_module(case.stem).workload(case, 1)
        assert runner.check_contenders(work) == {}, case.label
        assert OURS in work.contenders and work.solver()
        assert work.bytes == problem_of_case(case).bytes_moved() > 0
        assert command_of(case.command).switches == case.switches


def test_rivals_in_every_form_that_a_library_has():
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    images = {OURS, "torch", "torch nhwc", "onnxruntime"}
    for words, names in {
        "softmax --shapes 9x8 --kind softmax": {OURS, "torch", "onnxruntime", "numpy"},
        "softmax --shapes 9x8 --kind cross_entropy --backward": {OURS, "torch"},
        "batch_norm --shapes 1x8x4x4 --kind inference --layout NHWC": images | {"numpy"},
        "norm --shapes 9x8 --kind layer": {OURS, "torch", "onnxruntime"},
        "norm --shapes 9x8 --kind rms --backward": {OURS, "torch"},
        "norm --shapes 1x8x4x4 --kind instance": images,
        "norm --shapes 1x8x4x4 --kind group --backward": {OURS, "torch", "torch nhwc"},
        "tensor --shapes 2x3x4x5 --kind transform": {OURS, "torch", "numpy"},
        "tensor --shapes 2x3x4x5 --kind concat": {OURS, "torch", "numpy"},
        "pooling --shapes 1x8x4x4x2x2 --kind max": images | {"onednn"},
        "pooling --shapes 1x8x4x4x2x2 --kind avg --backward": {OURS, "torch", "torch nhwc"},
    }.items():
        (case,) = chosen(*words.split())
        assert set(cases.stem_module(case.stem).workload(case, 1).contenders) == names


def test_the_layers_of_the_networks_are_there():
    found = {
        (case["kind"], case.shape, case.get("stride", "1"), case.get("padding", "0")) for case in chosen("pooling")
    }
    assert {
        ("max", "16x64x112x112x3x3", "2", "1"), ("global_avg", "1x2048x7x7x7x7", "1", "0"),
        ("max", "1x64x224x224x2x2", "2", "0"), ("max", "16x832x7x7x3x3", "1", "1"),
        ("avg", "1x512x14x14x2x2", "2", "0"),
    } <= found  # fmt: skip
    rows = {(case["kind"], case.shape, case.get("across", False)) for case in chosen("softmax")}
    assert {
        ("softmax", "12288x128", False), ("cross_entropy", "64x128256", False), ("log_softmax", "262144x21", True)
    } <= rows  # fmt: skip
    layers = {(case["kind"], case.shape) for case in chosen("batch_norm")}
    assert {("train", "16x2048x7x7"), ("inference", "1x992x14x14"), ("backward", "16x64x112x112")} <= layers


def test_copies_move_what_their_lines_say():
    """A concatenation as much as both parts and the result; the line of a copy in another order poses the same."""
    shapes = {
        "transform": ["2x3x4x5", "3x4"], "transform-back": ["2x3x4x5"], "transform-heads": ["2x3x4x5"],
        "concat": ["2x3x4x5", "3x4"],
    }  # fmt: skip
    for kind, each in shapes.items():
        for case in chosen("tensor", "--shapes", "2x3x4x5,3x4", "--kind", kind):
            assert case.shape == each.pop(0)
            problem, elements = problem_of_case(case), math.prod(size for _, size in case.sizes)
            assert problem.bytes_moved() == 8 * elements * (2 if kind == "concat" else 1)
            if kind != "concat":
                again = problem_of_case(command_of(problem.bench_command()))
                assert (again, again.strides) == (problem, problem.strides)
        assert not each


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_line_of_a_call_names_one_case_that_poses_the_like(call):
    """Of calls of any rank and layout; the case's own problem has the same line."""
    args, words = call.given(*made(call, "f32"))
    line = problem_of(call.function, *args, **words).bench_command()
    assert problem_of_case(command_of(line)).bench_command() == line


def test_every_launch_of_a_loss_has_a_line(capfd):
    args, words = made(
        next(call for call in CALLS if str(call) == "softmax_cross_entropy_backward-rows-mean-0.0"), "f32"
    )
    with numbaprims.config(verbose=1):
        numbaprims.softmax_cross_entropy_backward(*args, **words)
    lines = [line.partition("  # ")[0].removeprefix("numbaprims: ") for line in capfd.readouterr().err.splitlines()]
    found = [command_of(line) for line in lines]
    assert [(case.shape, case["kind"], case.get("backward", False)) for case in found] == [
        ("9x37", "cross_entropy", False), ("9x1", "cross_entropy", True), ("9x37", "cross_entropy", True),
    ]  # fmt: skip


@pytest.mark.parametrize("words, message", [
    (["softmax", "--shapes", "8"], "shapes: '8'.*MxN"),
    (["softmax", "--kind", "softmin"], "kind: 'softmin'.*log_softmax"),
    (["softmax", "--kind", "hardmax", "--backward"], "kind: 'hardmax' given, which has no gradient"),
    (["batch_norm", "--shapes", "1x2x3"], "NxCxHxW"),
    (["pooling", "--shapes", "1x2x3x3x2x2", "--stride", "0"], "stride: '0'"),
    (["stack", "--kind", "pool"], "kind: 'pool'.*pool_norm_relu"),
    (["stack", "--shapes", "1x2x3x3"], "NxCxHxWxBLOCKS"),
    (["rnn", "--kind", "rnn"], "kind: 'rnn'.*rnn_tanh"),
    (["rnn", "--shapes", "9x2"], "TxNxIxH"),
])  # fmt: skip
def test_wrong_arguments_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        chosen(*words)


def posed(words):
    parser = argparse.ArgumentParser()
    problems.add_arguments(parser)
    stem, *rest = words.split()
    return problems.problems(stem, parser.parse_args(rest))


@pytest.mark.parametrize("words, line", [
    ("softmax --m 8 --n 100 --kind log_softmax --backward --across",
     "softmax --kind log_softmax --shapes 8x100 --dtype f32 --backward --across"),
    ("batch_norm --c 8 --hw 4 --kind train --layout NHWC",
     "batch_norm --kind train --shapes 16x8x1x1 --dtype f32 --layout NHWC"),
    ("pooling --c 8 --hw 5 --rs 2 --kind max --stride 2 --ceil",
     "pooling --kind max --shapes 1x8x5x5x2x2 --dtype f32 --stride 2x2 --ceil"),
    ("stack --c 8 --hw 5 --blocks 3 --kind norm_relu --most 5",
     "stack --kind batch_norm/3+relu/0 --shapes 1x8x5x5x3 --dtype f32 --most 5"),
    ("rnn --t 5 --n 3 --i 7 --h 4 --kind gru --layers 2 --directions 2 --lengths --backward",
     "rnn --kind gru --dtype f32 --shapes 5x3x7x4 --layers 2 --directions 2 --lengths --backward"),
    ("attention --n 1 --h 4 --g 2 --l 3 --s 5 --e 8 --kind causal",
     "attention --dtype f32 --shapes 1x4x2x3x5x8 --kind causal"),
    ("attention --n 4 --h 4 --g 2 --l 3 --s 5 --e 8 --kind padded --backward",
     "attention --dtype f32 --shapes 4x4x2x3x5x8 --kind padded --backward"),
    ("attention --n 2 --h 4 --g 2 --l 3 --s 5 --e 8 --kind windows",
     "attention --dtype f32 --shapes 2x4x2x3x5x8 --kind windows"),
])  # fmt: skip
def test_find_and_tune_name_problems_by_the_same_options(words, line):
    (problem,) = posed(words)
    assert problem.bench_command() == f"numbaprims bench {line}"


def test_masks_of_attention():
    """Each text of a batch ends earlier than the one before; every other window has two parts."""

    def mask(words):
        (case,) = chosen(*words.split())
        return attention._mask(case).storage

    padded = mask("attention --shapes 4x2x2x3x8x8 --kind padded")
    assert padded.shape == (4, 1, 1, 8) and (padded == 0).sum(-1).ravel().tolist() == [8, 7, 6, 5]
    assert np.isneginf(padded[padded != 0]).all()
    whole, parted = mask("attention --shapes 2x2x2x4x4x8 --kind windows")[:, 0]
    apart = np.arange(4) >= 2
    assert not whole.any() and ((parted == -100) == (apart[:, None] != apart)).all()


@pytest.mark.parametrize("stem", STEMS)
def test_sizes_of_every_stem_are_given_one_by_one(stem):
    names = problems._SIZES.get(stem, problems._IMAGE)
    words = " ".join(f"--{name} {1 if name in ('z', 'r', 's', 'blocks') else 4}" for name in names)
    assert posed(f"{stem} {words}")


def test_a_convolution_of_a_volume_has_its_bias_and_activation():
    words = "conv --c 2 --d 4 --hw 4 --k 2 --z 2 --rs 2 --bias --activation relu --direction forward,data"
    assert [(p.direction, p.bias, p.activation.kind) for p in posed(words)] == [
        ("forward", True, "relu"), ("data", False, "identity"),
    ]  # fmt: skip


def test_gradients_of_all_kinds_are_those_that_there_are():
    words = "softmax --m 5 --n 6 --backward"
    assert [problem.formula for problem in posed(words)] == [
        "softmax_backward", "log_softmax_backward", "cross_entropy_backward", "nll_loss_backward",
    ]  # fmt: skip
