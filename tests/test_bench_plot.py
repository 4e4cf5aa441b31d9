"""The pictures of a run, and the headlines of the README: what stands where."""

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from numbaprims.bench import plot, report, results, targets
from numbaprims.bench.headlines import HEADLINES

ROOT = Path(__file__).parents[1]


def test_the_plot_draws_a_roof_a_level():
    figure = pytest.importorskip("matplotlib.figure")
    levels = [("L1", 4e4, 400.0), ("L2", 1e6, 200.0), ("memory", None, 40.0)]
    roof = {"fma_f32": 250.0, "read": 40.0, "copy": 50.0}
    full = {**roof, "levels": [{"name": name, "bytes": end, "read": rate} for name, end, rate in levels]}
    runs = [{"threads": 1, "bytes": size, "gbs": 30.0, "flops": 2 * size, "gflops": 60.0} for size in (2e4, 5e5, 9e7)]

    def lines(document, stem):
        axes = figure.Figure().subplots()
        plot._under_the_roof(axes, {"rooflines": {"1": document}}, runs, stem)
        return axes, [list(zip(*line.get_data(), strict=True)) for line in axes.lines]

    axes, drawn = lines(full, "gemv")
    assert drawn[:3] == [
        [(1.6e4, 400.0), (4e4, 400.0)],
        [(4e4, 200.0), (1e6, 200.0)],
        [(1e6, 40.0), (9e7 * 1.25, 40.0)],
    ]
    assert [text.get_text() for text in axes.texts] == ["L1", "L2", "memory"] and len(drawn) == 4
    axes, drawn = lines(full, "gemm")  # two operations a byte
    assert [line[0] for line in drawn] == [(1.6, 250.0), (1.6, 250.0), (1.6, 64.0)]
    assert [text.get_text() for text in axes.texts] == ["memory"], "the others are above the peak from the start"
    assert len(lines(roof, "gemv")[1]) == 2, "results of before have the memory's alone"


def test_what_was_measured_on_a_gpu_is_drawn_under_its_copy(tmp_path):
    pytest.importorskip("matplotlib")
    for path in (ROOT / "benchmarks" / "results").glob("*nvidia*/gemm.json"):
        plot.draw(results.read(path), str(tmp_path / "gemm.svg"))
        assert (tmp_path / "gemm.svg").stat().st_size > 10_000
        return
    raise AssertionError("no results of a GPU")


def results_of(folder, cpu, values, threads=(1,)):
    """Stored results of a CPU that reached `values`, by headline."""
    machine = {"cpu": cpu, "llvm": "some", "cpus": 4}
    for stem in {stem for stem, _ in HEADLINES.values()}:
        rows = [
            {"stem": stem, "name": HEADLINES[title][1], "threads": count, "value": value,
             "verdict": "aim" if value >= 1 else "MISSED by 8 %"}
            for title, value in values.items() for count in threads if HEADLINES[title][0] == stem
        ]  # fmt: skip
        document = {"schema": results.SCHEMA, "date": "today", "machine": machine, "records": [], "targets": rows}
        results.save(folder / cpu / f"{stem}.json", document)


def test_every_cpu_with_results_has_its_columns_and_its_bars(tmp_path):
    titles = list(HEADLINES)
    folder, page = tmp_path / "results", tmp_path / "README.md"
    results_of(folder, "Intel(R) Xeon(R) @ 2.1GHz", {titles[0]: 2.0, titles[4]: 0.5}, threads=(1, 4))
    results_of(folder, "Neoverse", {titles[0]: 4.0})
    before = "".join(f"<!-- generated:bench {name} -->\n<!-- end -->\n" for name in ("chart speed.svg", "headlines"))
    page.write_text(before)
    where = ["--results", str(folder)]
    assert report.main(["--check", str(page), *where]) == 1 and page.read_text() == before
    assert report.main(["--write", str(page), *where]) == report.main(["--check", str(page), *where]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text().splitlines() if "|" in line]
    columns = [
        "Intel Xeon (some, 4 CPUs), 1 thread",
        "Intel Xeon (some, 4 CPUs), 4 threads",
        "Neoverse (some, 4 CPUs), 1 thread",
    ]
    assert rows[0][1:] == columns and len(rows) == 2 + len(titles)
    assert rows[2] == [titles[0], "2 x", "2 x", "4 x"] and rows[6] == [titles[4], "**0.5 x**", "**0.5 x**", ""]
    assert "](speed.svg)" in page.read_text()
    drawn = ElementTree.parse(tmp_path / "speed.svg").getroot()
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert set(columns) | set(titles) <= set(texts) and texts.count("2.00") == 2 and texts.count("0.50") == 2
    bars = [element for element in drawn.iter() if element.tag.endswith("rect") and element.get("height") == "9"]
    widths = [float(bar.get("width")) for bar in bars]
    assert widths == [widths[0], widths[0], pytest.approx(2 * widths[0], abs=0.2), widths[0], widths[0]]
    assert float(bars[3].get("x")) < float(bars[0].get("x")), "what is slower goes to the left"
    (tmp_path / "speed.svg").write_text("stale")
    assert report.main(["--check", str(page), *where]) == 1


def test_headlines_name_targets_and_the_readme_is_short():
    known = {(target.stem, target.name) for target in targets.TARGETS}
    assert set(HEADLINES.values()) <= known and len(HEADLINES) == 10
    before = (ROOT / "README.md").read_text().split("## What works where")[0]
    assert "generated:bench headlines" in before and sum(line.startswith("|") for line in before.splitlines()) <= 12
    assert (ROOT / "docs" / "speed.svg").stat().st_size < 20_000


def test_a_picture_has_an_address_where_the_project_has_one(tmp_path, monkeypatch):
    """PyPI knows no files of the repository."""
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/x"\n')
    monkeypatch.setattr(report, "_PROJECT", project)
    assert "](https://example.org/x/raw/HEAD/docs/a.svg?sanitize=true)" in report.tables("chart docs/a.svg", {})


def test_the_tables_in_the_docs_are_those_of_the_results():
    written = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    pages = [path for path in written if "generated:bench" in path.read_text()]
    assert ROOT / "docs" / "benchmarks.md" in pages
    assert report.main(["--check", *map(str, pages), "--results", str(ROOT / "benchmarks" / "results")]) == 0
    recipe = re.search(r"report --write ((?:.*\\\n)*.*)", (ROOT / "benchmarks" / "README.md").read_text())[1]
    told = subprocess.run(["bash", "-c", f"echo {recipe}"], capture_output=True, text=True).stdout.split()
    assert sorted(told) == sorted(str(page.relative_to(ROOT)) for page in pages)
