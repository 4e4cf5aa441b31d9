"""What `explain` and `find` print fits the terminal."""

import pytest
from solver_probes import FUNCTIONS, arguments, keywords

import numbaprims
from numbaprims.dispatch import tables
from numbaprims.stems import ENGINES


@pytest.mark.parametrize("columns", [40, 80, 130, None])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_printed_fits_the_terminal(name, columns, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    table, most = numbaprims.explain(name, *arguments(name), **keywords(name)), max(80, columns or 80)
    found = numbaprims.find(name, *arguments(name), **keywords(name), mode="fast")
    for text in (str(table), str(found)):
        lines = text.splitlines()
        assert max(map(len, lines)) <= most, f"{text}\nis wider than {most}"
        assert text.startswith(table.problem.bench_command().split(" --")[0])
    assert all(row.solver in str(table) and (row.refusal or "") in " ".join(str(table).split()) for row in table)
    folder = ENGINES.get(table.problem.stem, table.problem.stem)
    assert f" cpu/{folder}/" in str(table) and "/numbaprims/" not in str(table), "paths begin inside the package"
    commands = str(table).replace(" \\\n   ", "").splitlines()
    assert commands[0] == table.problem.bench_command(), "a shell takes the lines as one command"
    assert str(table.problem) in table.table(wide=True) and str(table.problem) in found.table(wide=True)


@pytest.mark.cpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_phases_of_the_chosen_solver_are_listed(name):
    table = numbaprims.explain(name, *arguments(name), **keywords(name), phases=True)
    kernels = [phase.kernel.name for run in table.program.runs for phase in run.phases]
    listed = str(table).partition("phases:\n")[2]
    assert kernels and all(f"  {kernel}: " in listed for kernel in kernels)
    assert listed in table.table(wide=True)
    assert "phases:" not in str(numbaprims.explain(name, *arguments(name), **keywords(name)))


def test_cells_break_between_words_and_only_then_inside():
    row = ("direct", "mr=8, nv=2, kc=192", "cpu/gemm/solvers.py:284")
    headings = ("solver", "config", "source")
    assert tables.fitted(headings, [row], 80, ("config", "source")).splitlines()[1] == "  ".join(row)
    narrow = tables.fitted(headings, [row], 41, ("config", "source")).splitlines()
    assert narrow[1:] == ["direct  mr=8,   cpu/gemm/solvers.py:284", "        nv=2,", "        kc=192"]
    paths = tables.fitted(headings, [row], 34, ("config", "source")).splitlines()
    assert paths[1:] == ["direct  mr=8,   cpu/gemm/", "        nv=2,   solvers.py:284", "        kc=192"]
    long = tables.fitted(("note",), [("x" * 50,)], 20, ("note",)).splitlines()
    assert max(map(len, long)) == 20 and "".join(long[1:]) == "x" * 50
    assert tables.short_path("/elsewhere/solver.py") == "/elsewhere/solver.py"
