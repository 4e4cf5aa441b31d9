"""``import numbaprims`` is light, and its public names are where they are said to be."""

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import numbaprims

PACKAGE = Path(numbaprims.__file__).parent


def fresh(code: str) -> str:
    """Runs `code` in a bare interpreter that finds the same package; returns what it prints."""
    env = dict(os.environ, PYTHONPATH=str(PACKAGE.parent))
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_heavy():
    loaded = json.loads(
        fresh(
            "import sys; before = set(sys.modules); import numbaprims, json; "
            "numbaprims.__version__, dir(numbaprims), numbaprims.__all__; "
            "print(json.dumps([m for m in sys.modules if m not in before]))"
        )
    )
    heavy = ("numpy", "numba", "torch", "llvmlite", "importlib.metadata", "dataclasses", "inspect")
    assert [m for m in loaded if m in heavy] == []
    assert [m for m in loaded if m.startswith("numbaprims.")] == ["numbaprims.stems"]  # tables of names


def test_a_call_on_the_cpu_loads_no_cuda():
    loaded = fresh(
        "import sys, numpy, numbaprims; a = numpy.ones((2, 2), numpy.float32); numbaprims.ger(a[0], a[1]); "
        "numbaprims.explain('ger', a[0], a[1]); "
        "print([m for m in sys.modules if m.startswith(('numba.cuda.', 'cuda', 'numbaprims.gpu'))])"
    )
    assert loaded.strip() == "[]"


def test_import_takes_under_20_ms():
    # The import is timed inside the interpreter, so that its own start-up does not count; the minimum of
    # several, because another process's load can only add.
    code = "import time; t = time.perf_counter(); import numbaprims; print(1e3 * (time.perf_counter() - t))"
    assert min(float(fresh(code)) for _ in range(5)) < 20


def test_dir_and_all_list_every_public_name():
    assert set(numbaprims._LAZY) <= set(dir(numbaprims))
    assert set(numbaprims._LAZY) - set(numbaprims.__all__) == {"abs", "round"}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'gemmm'"):
        numbaprims.gemmm  # noqa: B018
    with pytest.raises(ImportError):
        from numbaprims import gemmm  # noqa: F401


@pytest.mark.parametrize("name", sorted(numbaprims._LAZY))
def test_public_name_resolves(name: str):
    value = getattr(numbaprims, name)
    assert callable(value)
    defined = getattr(import_module(f"numbaprims.{numbaprims._LAZY[name]}"), name)
    assert value is defined or value.__wrapped__ is defined
    assert (value.__doc__ or "").strip(), f"{name} has no docstring"


def stub_homes() -> dict[str, str]:
    """Public name -> module, as numbaprims/__init__.pyi declares it."""
    homes: dict[str, str] = {}
    for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            home = node.module.removeprefix("numbaprims.")
            homes.update({alias.name: home for alias in node.names if alias.asname == alias.name})
    return homes


def test_stub_declares_exactly_the_public_names():
    assert stub_homes() == numbaprims._LAZY


def test_every_activation_kind_is_public():
    from numbaprims.ops import activation

    kinds = set(activation.NAMES)
    public = {name for name, home in numbaprims._LAZY.items() if home == "ops.activation"}
    assert public == kinds | {f"{kind}_backward" for kind in kinds} | {"activation", "activation_backward"}
