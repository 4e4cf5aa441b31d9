"""docs/add-a-kernel.md is followed to the letter: its code becomes a solver, and the solver is right and chosen."""

import importlib.util
import pathlib
import re
import sys

import numpy as np
import pytest
from assembly import kernel_assembly

import numbaprims
from numbaprims.dispatch import registry

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "add-a-kernel.md"


@pytest.fixture
def rank_one(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    code = next(block for block in blocks if "class RankOne" in block)
    path = tmp_path / "rank_one.py"
    path.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("rank_one", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rank_one", module)
    spec.loader.exec_module(module)
    old = registry.solvers

    def solvers(stem, device):
        found = old(stem, device)
        return (module.RankOne(), *found) if stem == "gemm" else found

    monkeypatch.setattr(registry, "solvers", solvers)
    from numbaprims.ops._gemm_pose import GEMM

    GEMM._launchers.clear()
    yield module
    GEMM._launchers.clear()


def test_the_page_makes_a_solver(rank_one):
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        a, b = rng.integers(-9, 9, (500, 1)).astype(dtype), rng.integers(-9, 9, (1, 701)).astype(dtype)
        table = numbaprims.explain("gemm", a, b)
        assert table.chosen.solver == "rank_one", str(table)
        out = np.full((500, 701), np.nan, dtype)
        numbaprims.gemm(a, b, alpha=2.0, out=out)
        np.testing.assert_array_equal(out, 2 * a * b)
    assert "k is 2" in numbaprims.explain("gemm", np.ones((4, 2)), np.ones((2, 4)))["rank_one"].refusal


@pytest.mark.parametrize(("cpu", "width", "register"), [("znver5", 16, "zmm"), ("x86-64-v3", 8, "ymm")])
def test_its_kernel_stores_vectors(rank_one, cpu, width, register):
    assert register in kernel_assembly(cpu, rank_one.make_rank_one, "f32", width)
