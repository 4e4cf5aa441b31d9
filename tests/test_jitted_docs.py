"""The table of docs/inside-njit.md is the code's, its examples run, and so does examples/ode_in_njit.py."""

import ctypes
import importlib.util
import inspect
import re
import runpy
from pathlib import Path

import numba
import numpy as np
import pytest

import numbaprims
import numbaprims.jitted
from numbaprims.jitted.rows import ABSENT, ARRAYS, LITERALS
from numbaprims.jitted.table import BY_KIND, ROWS

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "inside-njit.md").read_text()


def keyword_table():
    """Functions of the same arguments in one line: its arrays, what varies at run time, what must be literal."""
    functions: dict[tuple[str, ...], list[str]] = {}
    for name in (*ROWS, *BY_KIND):
        absent = ROWS[name].absent if name in ROWS else ()
        words = [word for word in inspect.signature(getattr(numbaprims, name)).parameters if word not in absent]
        arrays = (ROWS[name].arrays if name in ROWS else ()) or ARRAYS
        columns = (
            [word for word in words if word in arrays],
            [word for word in words if word not in arrays + LITERALS + ABSENT],
            [word for word in words if word in LITERALS],
        )
        functions.setdefault(tuple(", ".join(column) for column in columns), []).append(f"`{name}`")
    lines = ["| function | arrays | at run time | literals |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {', '.join(names)} | {' | '.join(words)} |" for words, names in functions.items())])


def test_the_table_of_keywords_is_that_of_the_code():
    assert keyword_table() in PAGE


def test_the_examples_of_the_page_run():
    numbaprims.jitted.init()
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert blocks
    for block in blocks:
        exec(block, names)


@pytest.fixture(scope="module")
def ode():
    spec = importlib.util.spec_from_file_location("ode_in_njit", ROOT / "examples" / "ode_in_njit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ode_agrees_with_numpy(ode):
    network, y = ode.make_network(16), np.float32([0.5, -1.0, 0.25, 2.0])
    ours = ode.integrate(y, network, 20)
    np.testing.assert_allclose(ours, ode.integrate_numpy(y, network, 20), rtol=1e-5, atol=1e-6)
    assert np.abs(ours - y).max() > 0.01


@pytest.mark.slow
def test_the_ode_example_runs(ode, capsys):
    ode.main(["--steps", "8", "--hidden", "8", "--trajectories", "40"])
    shown = capsys.readouterr().out
    assert "one trajectory, 4 -> 8 -> 8 -> 4" in shown
    assert f"40 trajectories on {numba.get_num_threads()} threads" in shown


def test_the_benchmark_of_the_page_runs_the_kernels_of_its_calls():
    script = runpy.run_path(str(ROOT / "benchmarks" / "overhead_in_njit.py"))
    for name, _, public, (*inputs, out) in script["cases"]():
        (kernel, arguments, tiles), keep = script["recorded"](lambda: public(*inputs, out=out))  # noqa: B023 (called here)
        out[...] = np.nan
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel)(arguments, 0, 0, tiles)
        np.testing.assert_array_equal(out, public(*inputs), err_msg=name)
        del keep
