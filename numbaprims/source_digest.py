"""What the machine code of a kernel depends on in Python: sources, byte code, the values it refers to.

A kernel inlines helpers of other modules, so the file it stands in is not enough: the digest covers every
file of its package that can be reached from that file by import statements. Sixty files take about 6 ms,
once in a process.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["NotStable", "closure_digest", "function_token"]

# Files that changed later than this may differ from the modules that this process has imported.
_STARTED = time.time()

# These hold no code that ends up in a kernel, and what they hold reaches it only through its spec.
_WITHOUT_KERNEL_CODE = (
    "settings device_arrays dlpack kernel_cache kernel_files source_digest workspace cpu.threads cpu.rates "
    "gpu.driver gpu.seam gpu.cuda_driver gpu.target gpu.memory gpu.launch"
).split()

_IMPORT = re.compile(
    rb"(?:^|[:;])[ \t]*"
    rb"(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n;]+)|import[ \t]+([\w][^\n;]*))",
    re.M,
)
_COMMENT = re.compile(rb"#[^\n]*")


class NotStable(Exception):
    """The kernel's code cannot be identified, so it must not be kept."""


# ---------------------------------------------------------------------------------------- import closure
class _File:
    """One source file: its digest and the modules that it names."""

    __slots__ = ("digest", "imports", "mtime")

    def __init__(self, path: str, module: str, is_package: bool) -> None:
        try:
            self.mtime = os.stat(path).st_mtime
            with open(path, "rb") as file:
                text = file.read()
        except OSError as error:
            raise NotStable(f"its source cannot be read ({error})") from None
        self.digest = hashlib.sha256(text).hexdigest()
        self.imports = tuple(dict.fromkeys(_imported(text, module, is_package)))


def _imported(text: bytes, module: str, is_package: bool) -> Iterator[tuple[str, str]]:
    """(module, name) of every ``from module import name``; the name is empty for ``import module``."""
    package = module if is_package else module.rpartition(".")[0]
    for source, names, plain in _IMPORT.findall(text.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")):
        if plain:
            for item in _COMMENT.sub(b"", plain).split(b","):
                yield _first_word(item), ""
            continue
        start = source.decode(errors="replace")
        level = len(start) - len(start.lstrip("."))
        start = start[level:]
        if level:
            above = package.split(".")
            above = above[: len(above) - level + 1]
            start = ".".join([*above, start] if start else above)
        for item in _COMMENT.sub(b"", names).strip(b"() \t\r\n").split(b","):
            yield start, _first_word(item)


def _first_word(item: bytes) -> str:
    words = item.split()
    return words[0].decode(errors="replace") if words else ""


_files: dict[str, _File] = {}
_closures: dict[str, str] = {}


@functools.cache
def _locate(base: str, module: str) -> tuple[str, bool] | None:
    """(path, is it a package) of a module below the directory `base`; None if it is not there."""
    path = os.path.join(base, *module.split("."))
    if os.path.isfile(path + ".py"):
        return path + ".py", False
    init = os.path.join(path, "__init__.py")
    if os.path.isfile(init):
        return init, True
    return ("", True) if os.path.isdir(path) else None  # a namespace package has no file


def _home(py_func: Callable[..., Any]) -> tuple[str, str, str]:
    """(directory above the top package, module name, path of the file) of a kernel."""
    path = os.path.abspath(py_func.__code__.co_filename)
    module = py_func.__module__ or "__main__"
    if not os.path.isfile(path):  # made by exec: the module that made it stands for it
        path = os.path.abspath(getattr(sys.modules.get(module), "__file__", None) or path)
    if not path.endswith(".py") or not os.path.isfile(path):
        raise NotStable(f"the source file of module {module} is not known")
    base = os.path.dirname(path)
    if os.path.basename(path) == "__init__.py":
        base = os.path.dirname(base)
    for _ in range(module.count(".")):
        base = os.path.dirname(base)
    return base, module, path


def closure_digest(py_func: Callable[..., Any]) -> str:
    """Digest of the sources that `py_func` can reach by imports inside its top-level package.

    Raises NotStable if a source is missing, or was edited after this process started: what is imported may
    then be older than what is on disk, and a kernel would be kept under the digest of sources it was not
    made from.
    """
    base, module, path = _home(py_func)
    if path not in _closures:
        _closures[path] = _scan(base, module, path)
    return _closures[path]


def _scan(base: str, module: str, path: str) -> str:
    top = module.partition(".")[0]
    skipped = {f"{top}.{name}" for name in _WITHOUT_KERNEL_CODE}
    is_package = os.path.basename(path) == "__init__.py"
    alone = "." not in module and not is_package
    found: dict[str, str] = {}
    waiting: list[tuple[str, str, bool]] = [(module, path, is_package)]
    seen = {module}
    while waiting:
        name, file_path, package = waiting.pop()
        file = _files.get(file_path)
        if file is None:
            file = _files[file_path] = _File(file_path, name, package)
        if _STARTED < file.mtime <= time.time():
            raise NotStable(f"{file_path} was edited while this process ran")
        found[name] = file.digest
        for target, attribute in file.imports:
            # A package follows its own modules; a lone module (a script) the lone ones beside it.
            if not target or (target.partition(".")[0] != top and not alone):
                continue
            located = _locate(base, target)
            if alone and located is not None and located[1]:
                continue
            if located is not None and located[1] and attribute:
                inner = _locate(base, f"{target}.{attribute}")  # a module of a package, or a name in its __init__
                if inner is not None:
                    target, located = f"{target}.{attribute}", inner
            if located is not None and located[0] and target not in seen and target not in skipped:
                seen.add(target)
                waiting.append((target, *located))
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


# ------------------------------------------------------------------------------------------ one function
def function_token(py_func: Callable[..., Any]) -> str:
    """Digest of a function's byte code, constants, defaults, closure, and of the globals it names.

    The sources don't tell which values a factory closed over, nor what a module-level constant became when
    the module asked the machine. Functions of the same package are followed. Raises NotStable for a closure
    over anything else than numbers, text, tuples of them, functions and types.
    """
    top = (py_func.__module__ or "").partition(".")[0]
    return hashlib.sha256(repr(_function(py_func, top, set(), True)).encode()).hexdigest()


def _function(function: Any, top: str, seen: set[int], strict: bool) -> tuple:
    code = function.__code__
    if id(code) in seen and not function.__closure__:
        return ("seen", code.co_name)
    seen.add(id(code))
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    space = function.__globals__
    named = [(name, space[name]) for name in _names(code) if name in space]
    return (
        _code(code),
        _value(function.__defaults__, top, seen, False),
        tuple(_value(cell, top, seen, strict) for cell in cells),
        tuple((name, _value(value, top, seen, False)) for name, value in named),
    )


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _code(code: CodeType) -> tuple:
    constants = tuple(
        _code(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    )
    return code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags


def _value(value: Any, top: str, seen: set[int], strict: bool) -> Any:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value).__name__, repr(value)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, tuple(_value(item, top, seen, strict) for item in value)
    function = getattr(value, "py_func", value)  # a Numba dispatcher wraps its function
    if isinstance(function, FunctionType):
        name = f"{function.__module__}.{function.__qualname__}"
        if (function.__module__ or "").partition(".")[0] != top:
            return "function", name
        return "function", name, _function(function, top, seen, strict)
    if isinstance(value, ModuleType):
        return "module", value.__name__
    if isinstance(value, type):
        return "type", f"{value.__module__}.{value.__qualname__}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # an array or scalar, frozen into the code
        return kind, str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if kind.startswith(("numba.core.types.", "numba.cuda.types.", "numpy.dtype")):
        return kind, str(value)
    if strict:
        raise NotStable(f"it closes over a {kind}, which has no stable name")
    return kind, getattr(value, "__name__", "")
