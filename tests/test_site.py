"""The site: what stands beside every page."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from numbaprims.stems import STEMS

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site with a heading for each page: its theme, its sidebars, its index."""
    for package in ("sphinx", "pydata_sphinx_theme", "myst_parser"):
        pytest.importorskip(package)
    source, built = tmp_path_factory.mktemp("docs"), tmp_path_factory.mktemp("site")
    index = (DOCS / "index.md").read_text()
    pages = [
        name for block in re.findall(r"```{toctree}\n(.*?)```", index, re.S) for name in block.split("\n\n")[1].split()
    ]
    for name in (*pages, "design/0001-foundation"):
        page = source / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# {name}\n")
    (source / "index.md").write_text(index)
    shutil.copy(DOCS / "design" / "index.md", source / "design")
    shutil.copytree(DOCS / "_templates", source / "_templates")
    look = (DOCS / "conf.py").read_text()
    (source / "conf.py").write_text('extensions = ["myst_parser"]\n' + look[look.index("html_theme =") :])
    words = [sys.executable, "-m", "sphinx", "-q", str(source), str(built)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


@pytest.mark.parametrize("page", ["primitives/conv", "demo", "reference/products", "design/index"])
def test_the_left_column_lists_the_pages(site: Path, page: str):
    left = re.search(r'<nav class="bd-docs-nav.*?</nav>', (site / f"{page}.html").read_text(), re.S)[0]
    links = re.findall(r'<a [^>]*href="([^"]*)"[^>]*>(.*?)</a>', left)
    shown = [text for _, text in links]
    primitives = [text.removeprefix("primitives/") for text in shown if text.startswith("primitives/")]
    assert primitives[:3] == ["index", "gemm", "conv"] and sorted(primitives) == sorted(["index", *STEMS])
    assert "Section Navigation" not in left and len(shown) > 20
    assert dict((text, href) for href, text in links).get(page, "#") == "#", "this page is the current one"
