"""Records of a run: what stands in the JSON file, and the facts about the machine that go with it."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import math
import os
import platform
import re
import subprocess
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numbaprims
from numbaprims.bench import rivals, targets

SCHEMA = 1
NO_MATPLOTLIB = "plot: matplotlib is not installed; pip install numbaprims[bench] brings it"


def facts(command: str, removed: Iterable[str]) -> dict[str, Any]:
    """Where, when and with what a run was made."""
    from numbaprims.cpu import target, threads

    cpu = target.current()
    return {
        "schema": SCHEMA,
        "command": command,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "numbaprims": numbaprims.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numba", "llvmlite")},
            **rivals.versions(),
        },
        "machine": {
            "slug": slug(),
            "cpu": cpu_name(),
            "llvm": cpu.microarchitecture,
            "isa": cpu.isa,
            "l1d": cpu.l1d,
            "l2": cpu.l2,
            "l3": cpu.l3,
            "cpus": cpu.cores_logical,
            "system": f"{platform.system()} {platform.machine()}",
            "threading_layer": threads.layer()[0],
            "load": load(),
        },
        "removed_from_environment": sorted(removed),
        "kernels": rivals.kernels(),
    }


def cpu_name() -> str:
    """What the vendor calls the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load() -> float | None:
    """Processes that wanted a CPU during the last minute, on average; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def slug() -> str:
    """A directory name for results of this kind of machine: amd-epyc-znver4-2cpu."""
    from numbaprims.cpu import target

    cpu = target.current()
    text = f"{cpu_name()} {cpu.microarchitecture} {cpu.cores_logical}cpu".lower()
    text = re.sub(r"\(r\)|\(tm\)|@.*?hz", " ", text)
    return re.sub(r"[^a-z0-9.]+", "-", text).strip("-")


def commit() -> str | None:
    """The commit of the checkout that this package was imported from, "+" behind it when files differ."""
    root = Path(numbaprims.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "numbaprims")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def save(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Write a run as JSON, whole or not at all."""
    partial = _partial(Path(path))
    partial.write_text(json.dumps(_rounded(document), indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _partial(path: Path) -> Path:
    """The file beside `path` that is written first; their folder is there then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}")


def check_paths(paths: Sequence[Path], plot: str | None, *, append: bool = False) -> None:
    """Ask before anything is measured whether it can be written, and drawn.

    Raises:
        OSError: a file cannot be written.
        ValueError: the plot's ending means nothing, matplotlib is not installed, or a file holds no run that others can
            be appended to.
    """
    if plot and Path(plot).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"plot: {plot!r} given, allowed are files that end in .png, .svg or .pdf")
    if plot and find_spec("matplotlib") is None:
        raise ValueError(NO_MATPLOTLIB)
    for path in [*paths, *map(Path, filter(None, [plot]))]:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        partial = _partial(path)
        partial.touch()
        partial.unlink()
    if append:
        for path in paths:
            _read_before(path)


def files(options: Namespace, document: Mapping[str, Any]) -> list[Path]:
    """Where the options want a run to be kept."""
    found = [Path(options.json)] if options.json else []
    if options.save:
        found.append(Path(options.save, document["machine"]["slug"], f"{options.subject}.json"))
    return found


def keep(options: Namespace, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Write what there is of a run, case after case: an interrupted one loses nothing that was measured.

    With --append the records of the file stay, except those of cases that were measured again.

    Returns:
        The goals with what was reached, in all that the last file holds.
    """
    rows = targets.summarise(document["records"])
    for path in files(options, document):
        whole = document
        if options.append:
            whole = merged(_read_before(path), document)
        rows = targets.summarise(whole["records"])
        save(path, {**whole, "targets": rows})
    return rows


# What the files held before this process wrote into them.
_before: dict[Path, dict[str, Any]] = {}


def _read_before(path: Path) -> dict[str, Any]:
    if path not in _before:
        document = read(path) if path.exists() else {}
        with held(path):
            targets.summarise(merged(document, {"records": []})["records"])
        _before[path] = document
    return _before[path]


def merged(before: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """A run with the records of an earlier one that it did not measure again; those say of which commit they are."""
    records = {
        _key(record): {"commit": before["commit"], "date": before["date"], **record}
        for record in before.get("records", [])
    } | {_key(record): record for record in document["records"]}
    rooflines = {**before.get("rooflines", {}), **document.get("rooflines", {})}
    return {**document, "records": list(records.values()), **({"rooflines": rooflines} if rooflines else {})}


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("stem", "suite", "label", "dtype", "threads", "device"))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A run that was saved. ValueError: another schema, or no run at all."""
    with held(path):
        document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        schema = document.get("schema")
    if schema != SCHEMA:
        raise ValueError(f"{path}: schema {schema!r} given, allowed is {SCHEMA}; run it again")
    return document


@contextlib.contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[None]:
    """ValueError, naming the file, where what it holds is not as `save` wrote it."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: it is damaged ({error!r}); run it again") from None


def _rounded(value: Any) -> Any:
    """Five significant digits: the noise is in the third."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
