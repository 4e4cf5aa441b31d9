"""What a kernel's code depends on: sources reached by imports, byte code, values."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types

from numbaprims import kernel_cache, source_digest


def scan(folder: Path, kernel: str) -> str:
    source_digest._files.clear(), source_digest._closures.clear(), source_digest._locate.cache_clear()
    path = folder.joinpath(*kernel.split(".")).with_suffix(".py")
    return source_digest._scan(str(folder), kernel, str(path))


FORMS = {
    "import pkg.helper": True,
    "import os, pkg.helper as h": True,
    "from pkg import helper": True,
    "from pkg.helper import f": True,
    "from pkg.helper import *": True,
    "from . import helper": True,
    "from .helper import f as g": True,
    "from . import (\n    other,  # a comment, with (brackets\n    helper,\n)": True,
    "from pkg import \\\n    helper": True,
    "if True: from .helper import f": True,
    "x = 1; import pkg.helper": True,
    "def late():\n    from pkg import helper": True,
    "try:\n\tfrom .helper import f\nexcept ImportError: pass": True,
    "from .deep.inner import f": True,  # which imports ..helper
    "from .deep import inner": True,
    "import helper": False,
    "from elsewhere.helper import f": False,
    "# from .helper import f": False,
    "important = helper = 1": False,
}


@pytest.mark.parametrize("form", FORMS)
def test_imports_are_followed(tmp_path, form, monkeypatch):
    monkeypatch.setattr(source_digest, "_STARTED", time.time() + 1000)
    package = tmp_path / "pkg"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "inner.py").write_text("from ..helper import f\n")
    (package / "other.py").write_text("")
    (package / "helper.py").write_text("def f(): return 1\n")
    (package / "kernel.py").write_text(f"import os\n{form}\n")
    before = scan(tmp_path, "pkg.kernel")
    (package / "helper.py").write_text("def f(): return 2\n")
    assert (scan(tmp_path, "pkg.kernel") != before) == FORMS[form]
    (package / "helper.py").write_text("def f(): return 1\n")
    assert scan(tmp_path, "pkg.kernel") == before


def parsed(text: str, module: str, is_package: bool) -> set[tuple[str, str]]:
    """What Python's own parser finds; numba and others, which cannot be found below the package, included."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*above, *filter(None, [node.module])])
            found |= {(start, alias.name) for alias in node.names}
    return found


def test_no_import_of_the_package_is_overlooked():
    root = Path(kernel_cache.__file__).parent
    checked = 0
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        seen = set(source_digest._imported(path.read_bytes(), module, is_package))
        missing = parsed(path.read_text(), module, is_package) - seen
        assert not missing, f"{path.name}: {missing}"
        checked += len(seen)
    assert checked > 100


def test_closure_of_a_real_kernel():
    from numbaprims.cpu import drivers

    source_digest._files.clear(), source_digest._closures.clear()
    source_digest.closure_digest(drivers._make_fill)
    files = {Path(path).relative_to(Path(kernel_cache.__file__).parent).as_posix() for path in source_digest._files}
    assert {"cpu/jit.py", "cpu/simd/arguments.py", "cpu/simd/types.py"} <= files
    for outside in (
        "__init__.py",
        "settings.py",
        "kernel_cache.py",
        "workspace.py",
        "ops/gemm.py",
        "cli/__init__.py",
    ):
        assert outside not in files


def test_import_cycles_end(tmp_path, monkeypatch):
    monkeypatch.setattr(source_digest, "_STARTED", time.time() + 1000)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("from . import b")
    (tmp_path / "pkg" / "b.py").write_text("from . import a")
    first = scan(tmp_path, "pkg.a")
    (tmp_path / "pkg" / "b.py").write_text("from . import a  # edited")
    assert scan(tmp_path, "pkg.a") != first


def test_missing_source_is_not_stable(tmp_path):
    namespace: dict = {"__name__": "no_such_module"}
    exec(compile("def f(x): return x", "<made>", "exec"), namespace)
    with pytest.raises(source_digest.NotStable, match="no_such_module"):
        source_digest.closure_digest(namespace["f"])
    cache = kernel_cache.KernelCache(namespace["f"], "made", (), {})
    assert cache.key(types.int64(types.int64)) is None


def function(source: str, **space):
    exec(source, {"__name__": __name__, **space}, space)
    return space["f"]


def test_token_tells_functions_apart():
    def close_over(value):
        def f(x):
            return x + value

        return f

    variants = [
        function("def f(x): return x + 1"),
        function("def f(x): return x + 1.0"),
        function("def f(x): return x + True"),
        function("def f(x): return x - 1"),
        function("def f(x, y=1): return x + y"),
        function("def f(x, y=2): return x + y"),
        *(close_over(v) for v in (1, 2, 1.0, -0.0, 0.0, "a", ("a", 1), ("a", 2), None, np.float32(1), np.int64(1))),
        *(close_over(function(f"def f(x): return x * {n}")) for n in (1, 2)),
        *(close_over(numba.njit(function(f"def f(x): return x - {n}"))) for n in (1, 2)),
        close_over(types.float32),
        close_over(types.float64),
        close_over(np.arange(3)),
        close_over(np.arange(4)),
    ]
    tokens = [source_digest.function_token(f) for f in variants]
    assert len(set(tokens)) == len(tokens)
    assert tokens == [source_digest.function_token(f) for f in variants]
    with pytest.raises(source_digest.NotStable):
        source_digest.function_token(close_over(object()))


TOKENS = """
import numba, numpy as np
from numba import types
from numbaprims import source_digest
def helper(x): return x in {"a", "b", "c"} or x in (1, 2)
@numba.njit
def compiled(x): return helper(x)
def factory(n, name, kind):
    def f(x):
        def inner(y): return [compiled(z) for z in range(y + n)]
        return inner(x), np.float32(n), kind, name, numba.prange
    return f
print(source_digest.function_token(factory(3, "n", types.float32)))
"""


def test_token_is_the_same_in_every_process(tmp_path):
    (tmp_path / "tokens.py").write_text(TOKENS)
    found = set()
    for seed in "12":
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(Path(kernel_cache.__file__).parents[1]),
        }
        done = subprocess.run([sys.executable, "tokens.py"], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
