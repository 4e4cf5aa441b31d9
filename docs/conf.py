"""How the site is built: `sphinx-build -W -n docs docs/_build` (docs/contributing.md has the commands)."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import numbaprims  # noqa: E402

project = "numbaprims"
copyright = "2026, numbaprims developers"
version = release = numbaprims.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # docstrings have "Args:" and "Returns:"
    "sphinx.ext.mathjax",
    "myst_nb",
    "from_source",
]
exclude_patterns = ["_build", "_ext", "_templates", "notes", "jupyter_execute"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say which arrays and types
napoleon_numpy_docstring = False

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# The notebooks are run when the site is built: what they show happened.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebook_cache")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

nitpick_ignore_regex = [("py:.*", r".*")]  # names in docstrings are code, not links


def notebooks() -> None:
    """The percent scripts of notebooks/, as the files that myst-nb takes."""
    import jupytext

    (HERE / "notebooks").mkdir(exist_ok=True)
    for script in sorted((HERE.parent / "notebooks").glob("*.py")):
        jupytext.write(jupytext.read(script), HERE / "notebooks" / f"{script.stem}.ipynb")


notebooks()

html_theme = "pydata_sphinx_theme"
html_title = "numbaprims"
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
}
templates_path = ["_templates"]
html_sidebars = {"index": [], "**": ["all-pages"]}
html_show_sourcelink = False
