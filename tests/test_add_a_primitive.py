"""docs/add-a-primitive.md, followed: its code makes a primitive that works as the package's own do."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import numbaprims
from numbaprims import stems
from numbaprims.bench import runner
from numbaprims.bench.cases import OURS, Case
from numbaprims.dispatch import examples
from numbaprims.dispatch.explain import problem_of
from numbaprims.formulas.reductions import FORMULAS
from numbaprims.tuning import records

PAGE = Path(__file__).resolve().parent.parent / "docs" / "add-a-primitive.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)

pytestmark = pytest.mark.cpu


@pytest.fixture
def unit(monkeypatch):
    """The module that the page's blocks make, as if they stood in the files that they name."""
    formula, tables, ops, use, *_ = BLOCKS
    exec(compile(formula, "formula", "exec"), {"__name__": "numbaprims.formulas.reductions"})
    exec(compile(tables, "stems", "exec"), {})
    module = types.ModuleType("numbaprims.ops.unit")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(numbaprims._LAZY, "unit_rows", "ops.unit")
    exec(compile(ops, "ops/unit.py", "exec"), vars(module))
    yield use
    vars(numbaprims).pop("unit_rows", None)
    del stems.PUBLIC["unit"], stems.ENGINES["unit"], FORMULAS["unit_rows"]


def test_the_page_makes_a_primitive(unit, tmp_path, monkeypatch):
    with numbaprims.config(database=str(tmp_path / "database")):
        exec(compile(unit, "use", "exec"), {})
    rng = np.random.default_rng(0)
    for dtype, tolerance in ((np.float32, 1e-6), (np.float64, 1e-14), (np.float16, 1e-3)):
        for x in (rng.standard_normal((7, 300)).astype(dtype), rng.standard_normal((300, 7)).astype(dtype).T):
            want = x / np.sqrt(np.square(x.astype(np.float64)).sum(-1, keepdims=True))
            assert np.abs(numbaprims.unit_rows(x) - want).max() < tolerance
            problem = problem_of("unit_rows", x)
            assert examples.restore("unit", records.fields_of(problem)).key() == problem.key()
    out = np.empty((7, 3), np.float32)
    assert numbaprims.unit_rows(np.ones((7, 3), np.float32), out=out) is out and np.allclose(out, 3**-0.5)
    with pytest.raises(TypeError, match="takes float64"):
        numbaprims.unit_rows(np.ones((2, 2), np.int32))
    with pytest.raises(ValueError, match="a dimension at least"):
        numbaprims.unit_rows(np.array(1.0))


def test_its_gradient_in_torch_and_its_benchmark(unit):
    torch = pytest.importorskip("torch")
    front, bench = {}, {}
    exec(compile(BLOCKS[4], "frontends/torch/unit.py", "exec"), front)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(front["unit_rows"], (x,)) and torch.autograd.gradgradcheck(front["unit_rows"], (x,))
    exec(compile(BLOCKS[5], "bench/stems/unit.py", "exec"), bench)
    case = Case("unit", "given", (("m", 33), ("n", 77)), "f32", (("kind", "rows"),))
    work = bench["workload"](case, 1)
    assert set(work.contenders) == {OURS, "torch"} and runner.check_contenders(work) == {} and work.solver() == "rows"
    assert work.bytes == 2 * 4 * 33 * 77
