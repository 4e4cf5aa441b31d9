"""README.md is true: its links lead somewhere, and its Python runs and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def section(heading: str) -> str:
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", README, re.M | re.S)[1]


def python_of(text: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if not re.match(r"\w+:", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_numpy_example_runs(capsys: pytest.CaptureFixture):
    scope: dict = {}
    exec(compile(python_of(section("From NumPy")), "README.md", "exec"), scope)
    np = scope["np"]
    expected = np.maximum(scope["x"].astype(np.float64) @ scope["w"].astype(np.float64), 0)
    np.testing.assert_allclose(scope["h"], scope["x"].astype(np.float64) @ scope["w"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(scope["y"], 1 / (1 + np.exp(-expected)), rtol=1e-4)
    np.testing.assert_allclose(scope["dx"], scope["y"] * (1 - scope["y"]), rtol=1e-4, atol=1e-7)
    assert "chosen" in capsys.readouterr().out


def test_torch_example_runs():
    torch = pytest.importorskip("torch")
    scope: dict = {}
    exec(compile(python_of(section("From torch")), "README.md", "exec"), scope)
    expected = torch.nn.functional.gelu(scope["x"].double() @ scope["w"].double())
    # bf16 keeps 8 bits of a value; products are rounded once before gelu and once after
    torch.testing.assert_close(scope["h"].double(), expected, rtol=2**-6, atol=0.1)


def test_njit_example_runs():
    from numbaprims import jitted

    jitted.init()  # as the entry point of an installed package does
    scope: dict = {}
    exec(compile(python_of(section("Inside your own `@njit`")), "README.md", "exec"), scope)
    np = scope["np"]
    state = np.array([1.0, 0.0, -1.0])
    for _ in range(100):
        state = state + 0.01 * np.tanh(state)
    np.testing.assert_allclose(scope["end"], state, rtol=1e-12)


PROGRAM = """
weights = nbp.RnnWeights.from_arrays("rnn_relu", np.ones((2, 3)), np.ones((2, 2)))
bytes_ = np.ones((8, 6), np.int8)
plans = (
    nbp.gemm.plan(w, activation="relu"), nbp.conv.plan(images.shape, filters, padding=1),
    nbp.gemm_integer.plan(bytes_), nbp.qlinear_gemm.plan(0.1, 0, bytes_, 0.1, 0.1, np.int8(0)),
    nbp.lstm.plan(weights), nbp.gru.plan(weights), nbp.rnn.plan(weights, clip=3.0),
)
for plan in plans:
    for result in plan.map([x]):
        result.shape
plans[0](x, out=h).shape
nbp.conv.find(images, filters, padding=1, check=True).best.seconds
print(nbp.explain(nbp.conv, images, filters), nbp.find(nbp.gemm, x, w).best)
nbp.gemm(x, w, alpa=2.0)  # wrong
nbp.lstm(x)  # wrong
nbp.gemm.plan(w, activaton="relu")  # wrong
nbp.linear.plan(w)  # wrong
nbp.gemmm(x)  # wrong
"""


@pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1's own types differ")
def test_types_are_checked_as_they_are(tmp_path: Path):
    """README's examples, and a program with an error in each line that says so."""
    pytest.importorskip("mypy")
    numpy, *others = [python_of(section(heading)) for heading in ("From NumPy", "From torch")]
    programs = {"from_numpy": numpy, "program": numpy + PROGRAM, "others": "\n".join(others)}
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    wrong = {k for k, line in enumerate(programs["program"].splitlines(), 1) if line.endswith("# wrong")}
    words = ["-m", "mypy", "--no-error-summary", "--cache-dir", tmp_path / "cache", *tmp_path.glob("*.py")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    found = {(name, int(line)) for name, line in re.findall(r"(\w+)\.py:(\d+): error", done.stdout)}
    assert found == {("program", line) for line in wrong}, done.stdout + done.stderr


def test_test_command_is_marked():
    block = re.search(r"<!-- the test command -->\n```sh\n(.*?)\n```", README, re.S)
    assert block and block[1] == "pip install '.[test]' && pytest"
