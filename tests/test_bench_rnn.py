"""The figure of recurrent solvers, on tiny sizes."""

import argparse

import numpy as np
import pytest

from numbaprims.bench import command, results, runner
from numbaprims.bench.cases import Workload
from numbaprims.bench.figures import miopen_rnn as figure
from numbaprims.bench.roofline import Roofline
from numbaprims.bench.stems import rnn
from numbaprims.cli import reproduce as cli_reproduce
from numbaprims.tuning.timing import Ratio


def reproduce(*words):
    parser = argparse.ArgumentParser()
    cli_reproduce.add_arguments(parser)
    return cli_reproduce.run(parser.parse_args(["miopen-rnn", *words, "--removed="]))


def test_it_is_measured_kept_and_drawn_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(figure, "CELLS", {"gru": figure.CELLS["gru"]})
    kept = tmp_path / "figure.json"
    assert reproduce("--quick", "--time-limit", "0.02", "--json", str(kept)) == 0
    entries = results.read(kept)["entries"]
    assert [(entry["axis"], entry["t"], entry["n"], entry["h"]) for entry in entries] == [
        ("t", 1, 16, 16), ("t", 2, 16, 16), ("n", 2, 1, 16), ("h", 2, 16, 16)
    ]  # fmt: skip
    for entry in entries:
        assert set(entry["seconds"]) == set(figure.SOLVERS) and entry["speedup"][figure.BASELINE] == 1
    printed = capsys.readouterr().out
    assert "across hidden units" in printed and "single_gemm: geometric mean" in printed
    pytest.importorskip("matplotlib")
    assert reproduce("--redraw", str(kept), "--plot", str(tmp_path / "figure.png")) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_another_result_is_an_error(monkeypatch, capsys):
    given = figure.lstm
    calls = iter(range(100))
    monkeypatch.setattr(figure, "CELLS", {"lstm": (lambda x, w: [np.add(given(x, w)[0], next(calls))], 4)})
    assert reproduce("--quick", "--time-limit", "0.02") == 1
    assert "NOT MEASURED: single_gemm gives another result" in capsys.readouterr().out


def test_rows_of_a_suite():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["rnn", "--suite", "deepbench_gru", "--steps-at-most", "375", "--n", "2", "--h", "1536"]
    found = rnn.cases(parser.parse_args(words))
    assert [(case["t"], case["n"], case["h"]) for case in found] == [(187, 2, 1536), (375, 2, 1536)]
    found = rnn.cases(parser.parse_args([*words, "--steps-at-least", "200"]))
    assert [case["t"] for case in found] == [375]


def test_only_the_rivals_that_are_asked_for():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["rnn", "--shapes", "3x2x8x8", "--kind", "gru", "--rivals", "numbaprims call,nobody"]
    (case,) = rnn.cases(options := parser.parse_args(words))
    quick = runner.Schedule(block=2e-3, settle=5e-4, rounds=3)
    record = runner.run_case(case, 1, Roofline(), quick, rivals=options.rivals)
    assert list(record["rivals"]) == ["numbaprims call"] and record["seconds"] > 0


def test_every_row_of_deepbench_fits_a_machine_of_24_gib(monkeypatch):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    suites = "deepbench_rnn,deepbench_lstm,deepbench_gru"
    found = rnn.cases(parser.parse_args(["rnn", "--suite", suites]))
    assert len(found) > 100 and max(map(rnn.memory, found)) < (24 << 30) / 2
    # and one that does not is refused before anything is made
    monkeypatch.setattr(runner, "physical_memory", lambda: 16 << 30)
    record = runner.run_case(max(found, key=rnn.memory), 1, None, runner.Schedule())
    assert "more than half of this machine's memory" in record["error"]


def test_parts_stand_under_their_own_roofs():
    """A second reads 100 bytes or does 1000 operations; what runs took ten seconds."""
    parts = [(100.0, 3000.0), (400.0, 1000.0)]
    work = Workload({}, lambda _: None, 4000.0, 500.0, "read and fma", str, parts=parts)
    shares = {"read": Ratio(50.0, 50.0, 50.0), "fma": Ratio(40.0, 40.0, 40.0)}
    found = runner._in_turn(work.parts, work, shares)
    assert {bound: round(share.value, 9) for bound, share in found.items()} == {"read": 40.0, "fma": 30.0}
