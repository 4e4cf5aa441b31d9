"""Settings: the environment, the process default, and the override of one context.

Every ``NUMBAPRIMS_*`` variable is read here, once, when this module is first imported, and nowhere else.

===========================  ===========  ====================================================================
variable                     default      meaning
===========================  ===========  ====================================================================
NUMBAPRIMS_THREADS           auto         threads of one call; ``auto``: affinity, cgroup quota, OMP_NUM_THREADS
NUMBAPRIMS_DETERMINISTIC     0            1: ignore measured times, always pick the same solver
NUMBAPRIMS_ALGORITHM         (empty)      forced solvers, ``stem:solver``, several separated by commas
NUMBAPRIMS_DEVICE            auto         ``cpu``, ``cuda``, ``cuda:N``, ``emulated``, ``reference``
NUMBAPRIMS_ALLOW_TF32        0            1: float32 products may use TF32 where the device has it
NUMBAPRIMS_ACCURACY          standard     ``fast``, ``standard``, ``high``: which error bounds a solver may have
NUMBAPRIMS_VERBOSE           0            1: log one line for each call; 2: also why each solver was refused
NUMBAPRIMS_FIND_MODE         fast         ``fast``: a call never measures; ``normal``, ``hybrid``, ``trust_verify`` may
NUMBAPRIMS_DATABASE          (cache)      file of the user's tuning database; ``off``: no database at all
NUMBAPRIMS_SOLVER_WORKSPACE  unlimited    scratch memory that a solver may need to be chosen (bytes; K, M, G)
NUMBAPRIMS_CACHE             1            0: compiled kernels are neither read from nor written to the disk
NUMBAPRIMS_CACHE_DIR         (platform)   directory of the compiled kernels and of the tuning database
NUMBAPRIMS_CACHE_LIMIT       1G           size at which the oldest kernels are removed (bytes; K, M, G, T)
NUMBAPRIMS_SHIPPED_CACHE     (empty)      read-only directory of compiled kernels that is looked at first
NUMBAPRIMS_WORKSPACE         256M         scratch memory that each thread keeps between calls (bytes; K, M, G)
===========================  ===========  ====================================================================

A value that cannot be used costs one warning that names it; the default is taken instead.

A ``ContextVar`` does not reach the threads of a ``ThreadPoolExecutor``, so there are two levels: the process
default (:meth:`config.set`) is seen by every thread, the override (``with config(...)``) by the current
context only.
"""

from __future__ import annotations

import itertools
import os
from _contextvars import ContextVar  # the C module: `contextvars` only re-exports it

from numbaprims.stems import PUBLIC

TYPE_CHECKING = False  # typing costs 3 ms to import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["Settings", "config", "current", "key", "reload", "set_defaults"]

ACCURACIES = ("fast", "close", "standard", "high")
FIND_MODES = ("fast", "normal", "hybrid", "trust_verify")
DEVICES = ("auto", "cpu", "cuda", "cuda:N", "emulated", "reference")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Settings:
    """The settings in force: an immutable record, built once for each combination of values.

    Attributes are read directly (``current().threads``). ``key`` is a small integer that two records share
    exactly if they agree in everything that changes which solver is chosen or what it computes.
    """

    __slots__ = (
        "accuracy", "algorithm", "allow_tf32", "cache", "cache_dir", "cache_limit", "calls", "database",
        "deterministic", "device", "find_mode", "key", "shipped_cache", "solver_workspace", "stream", "threads",
        "trial", "verbose", "workspace_limit",
    )  # fmt: skip

    threads: int | None  #: None: as many as cpu/threads.py finds
    deterministic: bool
    algorithm: tuple[tuple[str, str], ...]  #: sorted (stem, solver) pairs
    device: str | None  #: None: the arrays decide
    stream: Any  #: None: the caller's current stream
    allow_tf32: bool
    accuracy: str
    verbose: int
    find_mode: str
    cache: bool
    cache_dir: str | None  #: None: the platform's cache directory
    cache_limit: int
    shipped_cache: str | None
    workspace_limit: int
    database: str | None  #: None: a file in the cache directory; "": none
    solver_workspace: int | None  #: None: no limit
    trial: Any  #: what `find` is timing just now, None elsewhere
    key: int
    calls: Any  #: what known calls depend on: `key`, `threads`, `stream`, one object each; None: each call is logged

    def __init__(self, values: Mapping[str, Any]) -> None:
        store = object.__setattr__
        for name in _FIELDS:
            store(self, name, values[name])
        store(self, "key", _token(self))
        stream = None if self.stream is None else stream_address(self.stream)
        calls = self.key if self.threads is None and stream is None else (self.key, self.threads, stream)
        store(self, "calls", None if self.verbose else calls if self.trial else _tokens.setdefault(calls, calls))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are immutable; use numbaprims.config({name}=...) or config.set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("settings are immutable")

    def algorithm_for(self, stem: str) -> str | None:
        """Name of the solver forced for ``stem``, or None."""
        for name, solver in self.algorithm:
            if name == stem:
                return solver
        return None

    def __copy__(self) -> Settings:
        return self

    def __deepcopy__(self, memo: object) -> Settings:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Where it arrives, it has a key of that process; the stream and what is timed stay behind."""
        return Settings, ({**self.as_dict(), "stream": None, "trial": None},)

    def as_dict(self) -> dict[str, Any]:
        """The values by name, without the key."""
        return {name: getattr(self, name) for name in _FIELDS}

    def __repr__(self) -> str:
        return "Settings(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in _FIELDS) + ")"


# ---------------------------------------------------------------------------------------------- validation
def _bad(name: str, value: object, allowed: str, error: type[Exception] = ValueError) -> Exception:
    return error(f"{name}={value!r}: allowed is {allowed}")


def _check_bool(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in _TRUE + _FALSE:
        return value.strip().lower() in _TRUE
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise _bad(name, value, "True or False", ValueError if isinstance(value, (str, int)) else TypeError)


def _check_int(name: str, value: Any, low: int, high: int, allowed: str) -> int:
    if isinstance(value, bool):
        raise _bad(name, value, allowed, TypeError)
    try:
        number = int(value) if isinstance(value, str) else int(value.__index__())
    except ValueError:
        raise _bad(name, value, allowed) from None
    except AttributeError:
        raise _bad(name, value, allowed, TypeError) from None
    if not low <= number <= high:
        raise _bad(name, value, allowed)
    return number


def _check_threads(name: str, value: Any) -> int | None:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return None
    return _check_int(name, value, 1, 1 << 16, "a whole number from 1 to 65536, or 'auto'")


def _check_verbose(name: str, value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in _TRUE + _FALSE):
        return int(_check_bool(name, value))
    return _check_int(name, value, 0, 2, "0, 1, 2, False or True")


def _check_choice(allowed: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _bad(name, value, ", ".join(map(repr, allowed)), TypeError)
        if value.strip().lower() not in allowed:
            raise _bad(name, value, ", ".join(map(repr, allowed)))
        return value.strip().lower()

    return check


def _check_device(name: str, value: Any) -> str | None:
    allowed = ", ".join(map(repr, DEVICES))
    if not isinstance(value, str):
        raise _bad(name, value, allowed, TypeError)
    text = value.strip().lower()
    if text in ("", "auto"):
        return None
    if text in ("cpu", "cuda", "emulated", "reference"):
        return text
    kind, _, index = text.partition(":")
    if kind == "cuda" and index.isdecimal() and index.isascii():
        return f"cuda:{int(index)}"
    raise _bad(name, value, allowed)


def _check_algorithm(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    allowed = "'stem:solver' (several separated by commas) or a dict {stem: solver}"
    pairs: dict[str, str] = {}
    if isinstance(value, str):
        items = [tuple(part.strip() for part in item.split(":")) for item in value.split(",") if item.strip()]
    elif hasattr(value, "items"):
        items = list(value.items())
    else:
        raise _bad(name, value, allowed, TypeError)
    for item in items:
        if len(item) != 2 or not all(isinstance(part, str) and part.isidentifier() for part in item):
            raise _bad(name, value, allowed)
        stem, solver = item
        if stem not in PUBLIC and (whose := [each for each, names in PUBLIC.items() if stem in names]):
            raise _bad(name, value, f"solvers by stem; {stem!r} is a function of {whose[0]!r}")
        if pairs.setdefault(stem, solver) != solver:
            raise _bad(name, value, f"one solver for each stem; {stem!r} is named twice")
    return tuple(sorted(pairs.items()))


def _check_stream(name: str, value: Any) -> Any:
    if isinstance(value, (str, bytes, float, bool)):
        raise _bad(name, value, "a stream of torch, CuPy, numba.cuda or cuda.core, or its address", TypeError)
    return value


def _check_path(name: str, value: Any) -> str | None:
    try:
        text = os.fspath(value)
    except TypeError:
        raise _bad(name, value, "a path", TypeError) from None
    if not isinstance(text, str):
        raise _bad(name, value, "a path as str", TypeError)
    if "\0" in text:
        raise _bad(name, value, "a path without zero characters")
    return os.path.abspath(os.path.expanduser(text)) if text else None


def check_bytes(name: str, value: Any) -> int:
    allowed = "a number of bytes from 0, with K, M, G or T behind it where that is shorter"
    if not isinstance(value, str):
        return _check_int(name, value, 0, 1 << 60, allowed)
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    factor = _UNITS.get(text[-1:], 1)
    digits = text[:-1].rstrip() if factor > 1 else text
    if not (digits.isascii() and digits.isdecimal()):
        raise _bad(name, value, allowed)
    return int(digits) * factor


def _check_database(name: str, value: Any) -> str | None:
    if isinstance(value, str) and value.strip().lower() in ("off", "none"):
        return ""
    return _check_path(name, value)


def _check_solver_workspace(name: str, value: Any) -> int | None:
    if isinstance(value, str) and value.strip().lower() == "unlimited":
        return None
    return check_bytes(name, value)


# field: (check, default, environment variable)
_FIELDS: dict[str, tuple[Callable[[str, Any], Any], Any, str | None]] = {
    "threads": (_check_threads, None, "NUMBAPRIMS_THREADS"),
    "deterministic": (_check_bool, False, "NUMBAPRIMS_DETERMINISTIC"),
    "algorithm": (_check_algorithm, (), "NUMBAPRIMS_ALGORITHM"),
    "device": (_check_device, None, "NUMBAPRIMS_DEVICE"),
    "stream": (_check_stream, None, None),
    "allow_tf32": (_check_bool, False, "NUMBAPRIMS_ALLOW_TF32"),
    "accuracy": (_check_choice(ACCURACIES), "standard", "NUMBAPRIMS_ACCURACY"),
    "verbose": (_check_verbose, 0, "NUMBAPRIMS_VERBOSE"),
    "find_mode": (_check_choice(FIND_MODES), "fast", "NUMBAPRIMS_FIND_MODE"),
    "cache": (_check_bool, True, "NUMBAPRIMS_CACHE"),
    "cache_dir": (_check_path, None, "NUMBAPRIMS_CACHE_DIR"),
    "cache_limit": (check_bytes, 1 << 30, "NUMBAPRIMS_CACHE_LIMIT"),
    "shipped_cache": (_check_path, None, "NUMBAPRIMS_SHIPPED_CACHE"),
    "workspace_limit": (check_bytes, 256 << 20, "NUMBAPRIMS_WORKSPACE"),
    "database": (_check_database, None, "NUMBAPRIMS_DATABASE"),
    "solver_workspace": (_check_solver_workspace, None, "NUMBAPRIMS_SOLVER_WORKSPACE"),
    "trial": (lambda name, value: value, None, None),
}
_KEY_FIELDS = (
    "accuracy", "allow_tf32", "deterministic", "algorithm", "device", "find_mode", "database", "solver_workspace",
)  # fmt: skip
_tokens: dict[Any, Any] = {}
_numbers = itertools.count()


def _token(settings: Settings) -> int:
    if settings.trial is not None:
        return next(_numbers)  # each timed config is a call of its own, and the table would never forget it
    # setdefault and next are atomic, so two threads that meet a new combination agree on its number.
    # one thread may have less of the caches than several (cpu/target.py: kept)
    alone = settings.threads == 1
    return _tokens.setdefault((alone, *(getattr(settings, name) for name in _KEY_FIELDS)), next(_numbers))


def _validated(given: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, value in given.items():
        if name not in _FIELDS:
            raise TypeError(f"config has no setting {name!r}; it has {', '.join(_FIELDS)}")
        if value is not None:
            values[name] = _FIELDS[name][0](name, value)
    return values


def _from_environment() -> Settings:
    values = {}
    for name, (check, default, variable) in _FIELDS.items():
        values[name] = default
        text = os.environ.get(variable) if variable else None
        if text is None or not text.strip():
            continue
        try:
            values[name] = check(str(variable), text)
        except (TypeError, ValueError) as error:
            import warnings

            warnings.warn(f"{error}; {default!r} is used instead", RuntimeWarning, stacklevel=2)
    return Settings(values)


def stream_address(stream: Any) -> int:
    """The address of a stream of torch, CuPy, numba-cuda or cuda.core, or of one given as an int.

    0 is the default stream, which CUDA calls 1 too where 0 could mean none.
    """
    if isinstance(stream, int):
        return 0 if stream == 1 else stream
    if hasattr(stream, "__cuda_stream__"):
        return stream_address(int(stream.__cuda_stream__()[1]))
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return stream_address(int(getattr(value, "value", value) or 0))
    raise TypeError(
        f"stream is {stream!r}; it must be a stream of torch, CuPy, numba.cuda or cuda.core, or its address"
    )


# ----------------------------------------------------------------------------------------------- the levels
class _Override:
    """What one context changed, and the record that follows from it and from the process default.

    `outer` comes back when the block ends; not the `config` keeps it, which several contexts may have entered.
    """

    __slots__ = ("base", "changes", "merged", "outer")

    def __init__(self, base: Settings, changes: dict[str, Any], outer: _Override | None) -> None:
        self.base = base
        self.changes = changes
        self.outer = outer
        self.merged = Settings({**base.as_dict(), **changes})


_default: Settings = _from_environment()
_watchers: list[Callable[[], object]] = []
_override: ContextVar[_Override | None] = ContextVar("numbaprims.settings", default=None)
_lookup = _override.get


def current() -> Settings:
    """The settings in force here: the override of this context over the process default."""
    override = _lookup()
    if override is None:
        return _default
    if override.base is not _default:  # the process default changed inside the `with` block
        override = _Override(_default, override.changes, override.outer)
        _override.set(override)
    return override.merged


def key() -> int:
    """A small integer for the settings that change the choice or the result.

    Equal keys mean equal accuracy, allow_tf32, deterministic, algorithm, device, find_mode, database and
    solver_workspace. It is valid in this process only. Threads and verbosity are not in it: they change neither.
    """
    return _default.key if _lookup() is None else current().key


def set_defaults(**settings: Any) -> None:
    """Change the process default, for all threads. Takes every attribute of :class:`Settings`."""
    global _default
    values = _validated(settings)
    _default = Settings({**_default.as_dict(), **values})
    for function in _watchers:
        function()


def reload() -> None:
    """Read the environment again; what :meth:`config.set` changed is lost."""
    global _default
    _default = _from_environment()
    for function in _watchers:
        function()


def watch(function: Callable[[], object]) -> None:
    """Have a function called whenever the process default has changed."""
    _watchers.append(function)


class config:
    """Override settings inside a ``with`` block, for the current context.

    Parameters
    ----------
    threads : int or "auto"
        Threads of one call.
    deterministic : bool
        Ignore measured times, so that the same version on the same CPU always picks the same solver.
    algorithm : str or dict
        Solvers to force: ``"conv:winograd_4x4"``, ``"gemm:blocked,conv:direct"`` or ``{"gemm": "blocked"}``.
        An empty string or dict forces none.
    device : str
        ``"auto"`` (the arrays decide), ``"cpu"``, ``"cuda"``, ``"cuda:N"``, ``"emulated"``, ``"reference"``.
    stream : object
        The GPU stream to launch on.
    allow_tf32 : bool
        Let float32 products use TF32 where the device has it.
    accuracy : str
        ``"standard"``; ``"high"`` excludes what rounds more than the definition does; ``"close"`` lets tile registers
        multiply float32 in pieces of bfloat16 to its own precision, ``"fast"`` to 15 bits of each term.
    verbose : int or bool
        1 logs one line for each call.
    find_mode : str
        What the first call of a problem does: ``"fast"`` takes the database's choice, else the estimate's;
        ``"normal"`` times every solver; ``"hybrid"`` does so where the database has nothing; ``"trust_verify"``
        times the database's choice again and looks for another only where its time has changed.
    database : path
        File of the user's tuning database; ``"off"`` for none.
    solver_workspace : int or str
        Bytes of scratch memory that a solver may need to be chosen (``"64M"``, ``"unlimited"``).

    An argument that is left out, or None, keeps its value. Blocks nest, and several threads and tasks may be in blocks
    of one `config`. ``config.set(...)`` changes the default of the whole process instead, and is what a program that
    calls from a thread pool wants.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what was given and what is allowed; nothing has been changed then.

    Examples
    --------
    >>> from numbaprims.settings import config, current
    >>> with config(threads=1, algorithm="gemm:blocked"):
    ...     current().threads, current().algorithm_for("gemm")
    (1, 'blocked')
    """

    __slots__ = ("_changes",)

    set = staticmethod(set_defaults)

    def __init__(
        self,
        *,
        threads: int | str | None = None,
        deterministic: bool | None = None,
        algorithm: str | Mapping[str, str] | None = None,
        device: str | None = None,
        stream: Any = None,
        allow_tf32: bool | None = None,
        accuracy: str | None = None,
        verbose: int | bool | None = None,
        find_mode: str | None = None,
        database: str | os.PathLike[str] | None = None,
        solver_workspace: int | str | None = None,
    ) -> None:
        self._changes = _validated(
            {
                "threads": threads,
                "deterministic": deterministic,
                "algorithm": algorithm,
                "device": device,
                "stream": stream,
                "allow_tf32": allow_tf32,
                "accuracy": accuracy,
                "verbose": verbose,
                "find_mode": find_mode,
                "database": database,
                "solver_workspace": solver_workspace,
            }
        )

    def __enter__(self) -> Settings:
        outer = _lookup()
        changes = self._changes if outer is None else {**outer.changes, **self._changes}
        override = _Override(_default, changes, outer)
        _override.set(override)
        return override.merged

    def __exit__(self, *exception: object) -> None:
        override = _lookup()
        _override.set(None if override is None else override.outer)


class trial(config):
    """The settings of a call that `find` times: ``with trial(what):``; their key is shared with no other call."""

    __slots__ = ()

    def __init__(self, what: Any) -> None:
        self._changes = {"trial": what}
