"""Tables I and II and figure 3 of Zhang and Zhang: measured small, printed beside the paper's numbers, drawn."""

import argparse

import numpy as np
import pytest

from numbaprims.bench import results, zhang_calls
from numbaprims.bench.cases import OURS
from numbaprims.bench.figures import zhang_figure3, zhang_table1, zhang_table2
from numbaprims.cli import reproduce as cli_reproduce


def reproduce(*words):
    parser = argparse.ArgumentParser()
    cli_reproduce.add_arguments(parser)
    return cli_reproduce.run(parser.parse_args([*words, "--removed="]))


def test_savings_are_those_of_the_paper():
    """Equation 18 gives the percentages that the tables print beside their seconds."""
    plain, transposed = zhang_table1.PAPER[256, 256]
    assert round(zhang_calls.saving(plain.cublas, plain.kernel), 1) == 84.0
    assert round(zhang_calls.saving(plain.cpu, plain.kernel), 1) == 97.2
    assert round(zhang_calls.saving(transposed.cublas, transposed.kernel), 1) == 3.3
    last = zhang_table2.PAPER[256, 8192]
    assert round(zhang_calls.saving(last.cublas, last.kernel), 1) == 11.3
    assert len(zhang_table1.PAPER) == 18 and len(zhang_table2.PAPER) == 16
    means = [
        sum(zhang_calls.saving(row.cpu, row.kernel) for row in rows) / len(rows)
        for rows in ([pair[0] for pair in zhang_table1.PAPER.values()], list(zhang_table2.PAPER.values()))
    ]
    assert means == pytest.approx([96.2, 92.9], abs=0.5)  # as the paper's text says


@pytest.mark.parametrize("name, module", [("zhang-table1", zhang_table1), ("zhang-table2", zhang_table2)])
def test_a_table_is_measured_and_drawn_again(name, module, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "PAPER", {(256, 256): module.PAPER[256, 256], (128, 1024): module.PAPER[128, 1024]})
    kept = tmp_path / "table.json"
    assert reproduce(name, "--quick", "--time-limit", "0.02", "--json", str(kept)) == 0
    entries = results.read(kept)["entries"]
    assert len(entries) == (4 if name == "zhang-table1" else 2)
    for entry in entries:
        assert entry["seconds"][OURS] > 0 and "numpy" in entry["seconds"] and 0 < entry["fraction"] < 1
    printed = capsys.readouterr().out
    assert "whole calls" in printed and "% of them, in turns" in printed and "the paper's: cuBLAS" in printed
    pytest.importorskip("matplotlib")
    assert reproduce(name, "--redraw", str(kept), "--plot", str(tmp_path / "table.png")) == 0
    assert (tmp_path / "table.png").stat().st_size > 10_000


def test_a_wrong_contender_is_named(monkeypatch, capsys):
    """Ours being wrong is an error and no time; a rival's is a line below the row."""
    printed = zhang_table2.PAPER[256, 256]
    entry = {"device": "cpu", "m": 256, "n": 256, "trans": False}
    assert "NOT MEASURED: off by 1" in zhang_calls.line({**entry, "error": "off by 1"}, printed)
    timed = {**entry, "seconds": {OURS: 1.0, "numpy": 2.0}, "fraction": 0.1, "refused": {"torch": "wrong result"}}
    text = zhang_calls.line(timed, printed)
    assert "numpy +50.0" in text and "torch: left out, wrong result" in text
    monkeypatch.setattr(zhang_calls, "check_contenders", lambda work: {OURS: "off by 1"})
    assert reproduce("zhang-table2", "--quick", "--time-limit", "0.02") == 1
    assert "NOT MEASURED: off by 1" in capsys.readouterr().out


def test_the_libraries_of_figure_3_take_the_same_steps():
    """The weights after twenty steps are those of a float64 perceptron by the textbook."""
    found = zhang_figure3.contenders(12, "cpu")
    start = [w.astype(np.float64) for w in found[OURS].w]
    x, t = (np.array(part, np.float64) for part in (found[OURS].x, found[OURS].t))
    assert zhang_figure3.disagreement(found) is None
    (w1, w2), (b1, b2) = start, (np.zeros(12), np.zeros(10))

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    for sample, target in zip(x, t, strict=True):
        h = sigmoid(w1 @ sample + b1)
        y = sigmoid(w2 @ h + b2)
        d2 = (y - target) * y * (1 - y)
        d1 = (w2.T @ d2) * h * (1 - h)
        w2, b2 = w2 - zhang_figure3.RATE * np.outer(d2, h), b2 - zhang_figure3.RATE * d2
        w1, b1 = w1 - zhang_figure3.RATE * np.outer(d1, sample), b1 - zhang_figure3.RATE * d1
    for name, model in found.items():
        for got, want in zip([*model.w, *model.b], [w1, w2, b1, b2], strict=True):
            np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=1e-5, err_msg=name)
    found[OURS].w[0][0, 0] += 1
    assert "from ours" in zhang_figure3.disagreement(found)


def test_figure_3_is_measured_and_drawn_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(zhang_figure3, "PASS", 2)
    kept = tmp_path / "figure.json"
    assert reproduce("zhang-figure3", "--quick", "--time-limit", "0.02", "--json", str(kept)) == 0
    entries = results.read(kept)["entries"]
    assert [entry["hidden"] for entry in entries] == [10, 160]
    assert all(0 < entry["forward"][name] < entry["epoch"][name] for entry in entries for name in (OURS, "numpy"))
    assert "+200 % on average" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    assert reproduce("zhang-figure3", "--redraw", str(kept), "--plot", str(tmp_path / "figure.png")) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
