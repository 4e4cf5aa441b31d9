"""Every public function's docstring has an example, and the example runs and prints what it says."""

import doctest

import pytest

import numbaprims


@pytest.mark.parametrize("name", sorted(numbaprims._LAZY))
def test_example_runs(name: str):
    function = getattr(numbaprims, name)
    tests = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert tests and tests[0].examples, f"the docstring of {name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    report: list[str] = []
    result = runner.run(tests[0], out=report.append, clear_globs=True)
    assert result.failed == 0, "".join(report)
