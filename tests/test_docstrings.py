"""Every public function's docstring has an example; every example of the package runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import numbaprims

ROOT = Path(numbaprims.__file__).parent
#: Modules with examples in them; those of the public functions are run by name below.
MODULES = sorted(
    ".".join(("numbaprims", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


def run(tests: list[doctest.DocTest]) -> int:
    """Examples that ran; an assertion with doctest's report if one failed."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append, clear_globs=True)
    assert runner.failures == 0, "".join(report)
    return runner.tries


@pytest.mark.parametrize("name", sorted(numbaprims._LAZY))
def test_example_runs(name: str):
    function = getattr(numbaprims, name)
    tests = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert tests and tests[0].examples, f"the docstring of {name} has no example"
    assert run(tests)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_run(name: str):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if "torch" in str(error) or "numba-cuda" in str(error):
            pytest.skip(f"{name} needs what is not installed: {error}")
        raise
    public = {f"{name}.{function}" for function in numbaprims._LAZY}
    tests = [test for test in doctest.DocTestFinder().find(module, name) if test.name not in public and test.examples]
    run(tests)
