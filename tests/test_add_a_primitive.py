"""docs/add-a-primitive.md, followed: its code makes a primitive that works as the package's own do."""

import ast
import json
import os
import re
import shutil
import subprocess
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

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "add-a-primitive.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.S))
USE = re.search(r"```python\n(import numpy as np\nimport numbaprims\n.*?)```", PAGE, re.S)[1]
LINES = dict(re.findall(r"^\| `([A-Z]+)` \| `(.*?)` \|$", PAGE, re.M))  # of tables, by their names

pytestmark = pytest.mark.cpu


@pytest.fixture
def unit(monkeypatch):
    """The page's blocks and lines, as if they stood in the files that they name."""
    formula = FILES["numbaprims/formulas/reductions.py"]
    exec(compile(formula, "formula", "exec"), {"__name__": "numbaprims.formulas.reductions"})
    for name in ("PUBLIC", "ENGINES"):
        stem, value = next(iter(ast.literal_eval(f"{{{LINES[name]}}}").items()))
        monkeypatch.setitem(getattr(stems, name), stem, value)
    for part in ("reference", "ops"):
        module = types.ModuleType(f"numbaprims.{part}.unit")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(sys.modules[f"numbaprims.{part}"], "unit", module, raising=False)
        exec(compile(FILES[f"numbaprims/{part}/unit.py"], module.__name__, "exec"), vars(module))
    monkeypatch.setitem(numbaprims._LAZY, "unit_rows", "ops.unit")
    yield
    vars(numbaprims).pop("unit_rows", None)
    del FORMULAS["unit_rows"]


def test_the_page_makes_a_primitive(unit, tmp_path, monkeypatch):
    with numbaprims.config(database=str(tmp_path / "database")):
        exec(compile(USE, "use", "exec"), {})
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
    exec(compile(FILES["numbaprims/frontends/torch/unit.py"], "frontends/torch/unit.py", "exec"), front)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(front["unit_rows"], (x,)) and torch.autograd.gradgradcheck(front["unit_rows"], (x,))
    exec(compile(FILES["numbaprims/bench/stems/unit.py"], "bench/stems/unit.py", "exec"), bench)
    case = Case("unit", "given", (("m", 33), ("n", 77)), "f32", (("kind", "rows"),))
    work = bench["workload"](case, 1)
    assert set(work.contenders) == {OURS, "torch"} and runner.check_contenders(work) == {} and work.solver() == "rows"
    assert work.bytes == 2 * 4 * 33 * 77


def test_its_command_measures_it(tmp_path):
    """In a copy of the package, whose files the page's blocks and lines are written to."""
    shutil.copytree(ROOT / "numbaprims", tmp_path / "numbaprims")
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + text)
    for name, line in LINES.items():
        path = tmp_path / "numbaprims" / ("bench/table.py" if name == "RIVALS" else "stems.py")
        path.write_text(re.sub(rf"^({name}\b.*= \{{)$", rf"\1{line}", path.read_text(), flags=re.M))
    words = [sys.executable, "-m", "numbaprims", "bench", "unit", "--quick", "--threads", "1", "--time-limit", "0.01"]
    env = dict(os.environ, PYTHONPATH=str(tmp_path))
    done = subprocess.run([*words, "--json", "unit.json"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = json.loads((tmp_path / "unit.json").read_text())["records"]
    assert record["solver"] == "rows" and "error" not in record and record["label"] in done.stdout
