"""Every public function's docstring has an example; every example of the package runs and prints what it says."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import numbaprims
from numbaprims.ops._docs import documented

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


@pytest.mark.parametrize("name", sorted(set(numbaprims._LAZY) - {"config"}))
def test_every_parameter_is_described(name: str):
    function = getattr(numbaprims, name)
    args = inspect.getdoc(function).partition("\nArgs:\n")[2].partition("\n\n")[0]
    described = [word.strip("*") for names in re.findall(r"^ {4}(\S[^:]*):", args, re.M) for word in names.split(", ")]
    assert sorted(described) == sorted(inspect.signature(function).parameters)


FAMILY = """
Args:
    x: input.
    *: a number.
    out: result.

Raises:
    TypeError, ValueError: x.
"""
OWN = """One line.

Args:
    b: own,
        in two lines.

Returns:
    y.

Raises:
    ValueError: own.

Example:
    >>> 1
"""
COMPLETE = """One line.

Args:
    x: input.
    b: own,
        in two lines.
    a, c: a number.
    out: result.

Returns:
    y.

Raises:
    TypeError: x.
    ValueError: own.

Example:
    >>> 1
"""


@pytest.mark.parametrize("indentation", ["    ", ""], ids=["before Python 3.13", "since"])
def test_a_family_completes_a_docstring(indentation: str):
    def function(x, out, a, b, c): ...

    function.__doc__ = OWN.replace("\n", "\n" + indentation)
    complete = documented(FAMILY)
    assert complete(function) is function
    assert function.__doc__ == COMPLETE
    assert complete(function).__doc__ == COMPLETE, "a second time changes nothing"


def test_a_docstring_describes_no_other_parameters():
    def function(x): ...

    function.__doc__ = OWN
    with pytest.raises(TypeError, match="of function has {'b'}"):
        documented(FAMILY)(function)


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
