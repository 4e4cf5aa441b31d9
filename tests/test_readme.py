"""README.md is true: its links lead somewhere, and its Python runs and prints what it says."""

import re
from pathlib import Path

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


def test_test_command_is_marked():
    block = re.search(r"<!-- the test command -->\n```sh\n(.*?)\n```", README, re.S)
    assert block and block[1] == "pip install '.[test]' && pytest"
