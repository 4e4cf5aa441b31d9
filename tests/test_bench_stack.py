"""The benchmark of depth-first stacks: its cases and contenders."""

import shutil

import pytest
from test_bench import chosen, command_of

from numbaprims.bench import cases, runner, targets
from numbaprims.bench.cases import OURS
from numbaprims.bench.problems import problem_of_case
from numbaprims.bench.stems import shared, stack

SMALL = [
    "stack --shapes quick",
    "stack --shapes quick --layout NHWC",
    "stack --shapes 2x20x9x7x2 --dtype f64,bf16,f16 --kind pool_norm_relu,avg",
    "stack --shapes 2x4x9x8x2 --kind scale/1+max/2x2/1x1/0x0/1x0/1x1/0/1+add/0 --most 1 --limit -1",
]


@pytest.fixture
def plain(monkeypatch):
    """Without a C++ compiler: inductor's place is taken by the module itself."""
    monkeypatch.setattr(stack, "inductor", lambda torch, module, x: shared.returned(torch, lambda: module(x)))


@pytest.mark.parametrize("words", SMALL)
def test_every_contender_computes_the_case(plain, words):
    """Rivals and ours, in the very form that is timed, against the float64 definition."""
    for case in chosen(*words.split()):
        work = cases.stem_module(case.stem).workload(case, 1)
        assert runner.check_contenders(work) == {}, case.label
        assert OURS in work.contenders and work.solver()
        posed = problem_of_case(case)
        assert work.bytes == posed.bytes_moved() > 0
        assert command_of(case.command).switches == case.switches
        assert problem_of_case(command_of(posed.bench_command())).key() == posed.key()


def test_rivals_in_every_form_that_a_library_has(plain):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    every = {OURS, "torch", "torch nhwc", "inductor", "inductor nhwc", "onnxruntime", f"{OURS} layers"}
    for words, names in {
        "stack --shapes 1x8x4x4x2 --kind pool_norm_relu": every,
        "stack --shapes 1x8x4x4x2 --kind pool_norm_relu --layout NHWC": every,
        "stack --shapes 1x8x4x4x2 --kind avg --dtype bf16": every - {"onnxruntime", f"{OURS} layers"},
        "stack --shapes 1x8x4x4x2 --kind leaky_relu/1": {OURS},
        "stack --shapes 1x8x4x4x1 --kind max/2x2/1x1/0x0/1x1/1x1/0/1": {OURS, "onnxruntime"},
    }.items():
        (case,) = chosen(*words.split())
        assert set(stack.workload(case, 1).contenders) == names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, within
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_inductor_compiles_every_kind():
    """At the first call; another number of blocks is compiled again."""
    pytest.importorskip("torch")
    for words in ("stack --shapes quick", "stack --shapes 1x4x6x6x2,1x4x6x6x3 --kind pool_norm_relu"):
        for case in chosen(*words.split()):
            work = stack.workload(case, 1)
            assert {"inductor", "inductor nhwc"} < set(work.contenders)
            assert runner.check_contenders(work) == {}, case.label


def test_what_inductor_refuses_is_not_timed(monkeypatch):
    """Without a compiler the table says why the column is empty."""
    torch = pytest.importorskip("torch")

    def refuse(module, **words):
        def call(x):
            raise RuntimeError("No working C++ compiler found")

        return call

    monkeypatch.setattr(torch, "compile", refuse)
    (case,) = chosen("stack", "--shapes", "1x4x6x6x1", "--kind", "norm_relu")
    refused = runner.check_contenders(stack.workload(case, 1))
    assert set(refused) == {"inductor", "inductor nhwc"} and "No working C++ compiler" in refused["inductor"]


def test_the_line_of_a_problem_repeats_its_shortest_block():
    (case,) = chosen("stack", "--shapes", "1x4x6x6x2", "--kind", "relu/0+relu/0+scale/1")
    assert "--kind relu/0+relu/0+scale/1 --shapes 1x4x6x6x2 " in problem_of_case(case).bench_command()
    (case,) = chosen("stack", "--shapes", "1x4x6x6x2", "--kind", "relu/0+relu/0")
    assert "--kind relu/0 --shapes 1x4x6x6x4 " in problem_of_case(case).bench_command()


def test_goals_compare_images_of_one_layout():
    record = {"stem": "stack", "suite": "figure10", "label": "a", "dtype": "f32", "threads": 1, "rivals": {
        "torch": {"speedup": 70.0}, "torch nhwc": {"speedup": 9.0}, "inductor": {"speedup": 7.0},
        "numbaprims layers": {"speedup": 3.5}}, "switches": {"kind": "pool_norm_relu"}}  # fmt: skip
    rows = {row["name"]: row["value"] for row in targets.summarise([record])}
    assert rows["f32, figure 10, over torch of the layout"] == pytest.approx(70)
    assert rows["f32, figure 10, over our own layers"] == pytest.approx(3.5)
    record["switches"]["layout"] = "NHWC"
    rows = {row["name"]: row["value"] for row in targets.summarise([record])}
    assert rows["f32, figure 10, over torch of the layout"] == pytest.approx(9)
    assert "f32, figure 10, over inductor of the layout" not in rows
