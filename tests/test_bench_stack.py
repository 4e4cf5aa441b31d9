"""The benchmark of depth-first stacks: cases, contenders, figure 10 of BrainSlug, and the example that draws it."""

import argparse
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_bench import chosen, command_of

from numbaprims.bench import cases, report, results, runner, targets
from numbaprims.bench.cases import OURS
from numbaprims.bench.figures import brainslug_figure10 as figure, miopen_figure7
from numbaprims.bench.problems import problem_of_case
from numbaprims.bench.stems import shared, stack
from numbaprims.cli import reproduce as cli_reproduce

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


# Figure 10 -------------------------------------------------------------------------------------------


def reproduce(*words, figure="brainslug-figure10"):
    parser = argparse.ArgumentParser()
    cli_reproduce.add_arguments(parser)
    return cli_reproduce.run(parser.parse_args([figure, *words, "--removed="]))


@pytest.fixture
def small_figure(plain, monkeypatch):
    monkeypatch.setattr(figure, "IMAGES", {"n": 1, "c": 4, "h": 9, "w": 9})


def test_figure_10_is_measured_and_drawn_again(small_figure, monkeypatch, tmp_path, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr(figure, "COMPILED", (4,))
    kept = tmp_path / "figure.json"
    assert reproduce("--quick", "--time-limit", "0.02", "--json", str(kept)) == 0
    document = results.read(kept)
    entries = document["entries"]
    assert [entry["blocks"] for entry in entries] == [1, 4]
    for entry in entries:
        compiled = {"inductor", "inductor nhwc"} if entry["blocks"] == 4 else set()
        for protocol in (figure.PAPER, figure.BLOCKS):
            seconds = entry["seconds"][protocol]
            assert set(seconds) == {"auto", "one", "five", "unrestricted", "layers", "torch", "torch nhwc"} | compiled
            assert min(seconds.values()) > 0
    printed = capsys.readouterr().out
    for words in ("10-20 x (1.4-2.2 x)", "58 % (61 %)", "24 and 38", "least of 5 runs", "over inductor"):
        assert words in printed
    assert "58 % (61 %)" in report.tables(
        "figure brainslug-figure10", {"here": {"figure brainslug-figure10": document}}
    )
    pytest.importorskip("matplotlib")
    assert reproduce("--redraw", str(kept), "--plot", str(tmp_path / "figure.png")) == 0
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_a_wrong_strategy_of_figure_10_is_an_error(small_figure, monkeypatch, capsys):
    """A rival's wrong result is a line below the row, one of ours leaves no times."""
    real = figure.check_contenders
    monkeypatch.setattr(figure, "check_contenders", lambda work: real(work) | {"five": "off by 1"})
    assert reproduce("--quick", "--time-limit", "0.02") == 1
    assert "NOT MEASURED: five: off by 1" in capsys.readouterr().out
    monkeypatch.setattr(figure, "check_contenders", lambda work: real(work) | {"layers": "off by 1"})
    assert reproduce("--quick", "--time-limit", "0.02") == 0
    printed = capsys.readouterr().out
    assert "layers: left out, off by 1" in printed and "one by one, which it does not have: not measured" in printed


def test_strategies_are_other_plans():
    """Each of them runs as another number of sequences, and gives what `auto` does."""
    import dataclasses

    from numbaprims.cpu.stack import planner
    from numbaprims.dispatch import registry

    (case,) = chosen("stack", "--shapes", "4x64x56x56x40", "--kind", figure.KIND)
    problem, target = problem_of_case(case), registry.target("cpu")
    assert set(figure.DEPTHS["quick"]) < set(figure.DEPTHS["normal"]) < set(figure.DEPTHS["full"])
    counts = {
        name: len(list(planner.sequences(dataclasses.replace(problem, **words), target)))
        for name, words in figure.STRATEGIES.items()
    }
    assert counts == {"one": 40, "five": 8, "unrestricted": 1}


# examples/depth_first.py -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parent.parent / "examples" / "depth_first.py"
    spec = importlib.util.spec_from_file_location("depth_first", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_measures_and_draws(example, monkeypatch, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda module, **words: module)
    monkeypatch.setattr(example, "least", lambda call, budget: 1e-3)
    picture = tmp_path / "depth.png"
    found = example.main(["--depths", "1,3", "--images", "1x4x9x9", "--plot", str(picture)])
    assert set(found) == {*example.STRATEGIES, "layer by layer", "torch", "inductor"}
    assert all(times == [1.0, 1 / 3] for times in found.values())
    printed = capsys.readouterr().out
    assert "0.3333" in printed and "unrestricted" in printed
    if importlib.util.find_spec("matplotlib"):
        assert picture.stat().st_size > 5_000


def test_the_example_notices_another_result(example, monkeypatch):
    x = np.ones((1, 4, 9, 9), np.float32)
    monkeypatch.setattr(example, "make_parameters", lambda channels, depth: np.ones((channels, 3 * depth), np.float32))
    real = example.stacks
    monkeypatch.setattr(example, "stacks", lambda *given: {"auto": lambda: real(*given)["auto"]() + 1})
    with pytest.raises(AssertionError, match="auto"):
        example.measure(x.shape, [1], 0.0)


def test_figure_7_is_measured_and_drawn_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(miopen_figure7, "CBA", ((1, 3, 5, 6, 7), (3, 4, 2, 6, 5)))
    monkeypatch.setattr(miopen_figure7, "NA", ((3, 5, 4),))
    kept = tmp_path / "figure.json"
    words = ("--quick", "--batch", "2", "--time-limit", "0.02", "--json", str(kept))
    assert reproduce(*words, figure="miopen-figure7") == 0
    entries = results.read(kept)["entries"]
    assert [(entry["panel"], entry["label"]) for entry in entries] == [
        ("a", "1x1 3-5-6-7"), ("a", "3x3 4-2-6-5"), ("b", "3-5-4")
    ]  # fmt: skip
    assert all(entry["speedup"] > 0 for entry in entries)
    assert "up to 2.5 times" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    assert reproduce("--redraw", str(kept), "--plot", str(tmp_path / "figure.png"), figure="miopen-figure7") == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_a_wrong_side_of_figure_7_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(miopen_figure7, "CBA", ((1, 3, 5, 6, 7),))
    monkeypatch.setattr(miopen_figure7, "NA", ())
    monkeypatch.setattr(miopen_figure7, "relu", lambda y, out: y)
    assert reproduce("--quick", "--time-limit", "0.02", figure="miopen-figure7") == 1
    assert "NOT MEASURED: the fused result is another" in capsys.readouterr().out
