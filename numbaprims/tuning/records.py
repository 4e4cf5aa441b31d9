"""What a tuning database keeps: the key of a problem, and for each solver its config and time.

A key and a record are plain JSON, and stay readable from release to release: a problem is written as its fields by
name (those that take part in the choice), and a field that has its default value is left out, so that a field which
a later release adds to a problem changes no key that was written before.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from numbaprims import settings

SCHEMA = 1
"""Raised when the form of a key or of a record changes."""
RELATED = ", another machine of the family"
"""What is said of times that were not taken on this very model of CPU or GPU."""


@dataclasses.dataclass(frozen=True)
class Key:
    """What identifies measured times: the problem, the settings that decide which solvers may run, the device."""

    stem: str
    problem: str
    """Its fields as canonical JSON."""
    settings: str
    """Those that are not at their defaults, as canonical JSON."""
    fingerprint: str
    """Exactly this CPU or GPU."""
    family: str
    """Its family, instruction set and second-level cache."""

    def document(self) -> dict[str, Any]:
        """The key as it stands in a line of an exported file."""
        return {
            "stem": self.stem,
            "problem": json.loads(self.problem),
            "settings": json.loads(self.settings),
            "fingerprint": self.fingerprint,
            "family": self.family,
        }

    @classmethod
    def of_document(cls, document: Any) -> Key:
        """The key of a line; ValueError, in a sentence, where it is none."""
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        for name in ("stem", "fingerprint", "family"):
            if not _is_text(document.get(name)) or not document[name]:
                raise ValueError(f"its {name} is {document.get(name)!r}, not a string")
        for name in ("problem", "settings"):
            if not isinstance(document.get(name), dict):
                raise ValueError(f"its {name} is {document.get(name)!r}, not an object")
        return cls(
            document["stem"], dump(document["problem"]), dump(document["settings"]),
            document["fingerprint"], document["family"],
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Record:
    """The best config of one solver for one problem, and its time."""

    solver: str
    version: int
    config: dict[str, int | str]
    seconds: float
    threads: int
    toolchain: str
    error: float | None = None
    """Of a record that ships: the largest difference from the float64 definition, relative to the largest value."""

    def document(self) -> dict[str, Any]:
        """The record as it stands in a line of an exported file."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def of_document(cls, document: Any) -> Record:
        """The record of a line; ValueError, in a sentence, where it is none."""
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        values: dict[str, Any] = {field.name: document.get(field.name) for field in dataclasses.fields(cls)}
        config, seconds, error = values["config"], values["seconds"], values["error"]
        for name, known in (
            ("solver", _is_text),
            ("version", _is_whole),
            ("threads", _is_whole),
            ("toolchain", _is_text),
        ):
            if not known(values[name]):
                raise ValueError(f"its {name} is {values[name]!r}")
        if not isinstance(config, dict) or not all(
            _is_text(k) and (_is_whole(v) or _is_text(v)) for k, v in config.items()
        ):
            raise ValueError(f"its config is {config!r}; tunables are whole numbers and words")
        if not _is_number(seconds) or not 0 < seconds < LARGEST:
            raise ValueError(f"its seconds are {seconds!r}")
        if error is not None and (not _is_number(error) or not 0 <= error < LARGEST):
            raise ValueError(f"its error is {error!r}")
        return cls(**{**values, "seconds": float(seconds), "error": None if error is None else float(error)})


# What a file says may be anything; a database takes integers of 64 bits and text that UTF-8 can write.
LARGEST = 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value < LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def load(text: str) -> Any:
    """The value of JSON that a stranger may have written; ValueError for what is none, has more parts than any record
    (Python cannot read what nests deep), or two fields of a name.

    >>> load("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it has more than 100 lists and objects
    """
    if not isinstance(text, str):
        raise ValueError("it is no text")
    if text.count("[") + text.count("{") > 100:
        raise ValueError("it has more than 100 lists and objects")
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has two fields of a name")
    return found


def dump(value: Any) -> str:
    """Canonical JSON: the same text for the same value.

    >>> dump({"n": 2, "a": (1, "x")})
    '{"a":[1,"x"],"n":2}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """A field of a problem as JSON has it; TypeError for what JSON cannot hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
    raise TypeError(f"a problem holds {value!r}, which a database cannot keep")


def fields_of(problem: Any) -> dict[str, Any]:
    """The fields that identify a problem, those at their defaults left out."""
    return {
        field.name: plain(value)
        for field in dataclasses.fields(problem)
        if field.compare and not _is(field.default, value := getattr(problem, field.name))
    }


def _is(default: Any, value: Any) -> bool:
    return default is not dataclasses.MISSING and type(default) is type(value) and bool(default == value)


def stored(cls: type, fields: Mapping[str, Any]) -> SimpleNamespace:
    """An object with the attributes of a stored problem: lists are tuples again, absent fields have their defaults.

    Raises:
        ValueError: a field that the class does not have, or one without a default is absent.
    """
    known = {field.name: field for field in dataclasses.fields(cls) if field.compare}
    strange = sorted(set(fields) - set(known))
    if strange:
        raise ValueError(f"{cls.__name__} has no field {strange[0]!r}")
    values = {name: field.default for name, field in known.items()} | {k: _revive(v) for k, v in fields.items()}
    absent = sorted(name for name, value in values.items() if value is dataclasses.MISSING)
    if absent:
        raise ValueError(f"{cls.__name__} needs the field {absent[0]!r}")
    return SimpleNamespace(**values)


def _revive(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_revive(item) for item in value)
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _revive(item) for name, item in value.items()})
    return value


def settings_document() -> dict[str, Any]:
    """The settings in force that decide which solvers may run, where they are not at their defaults."""
    state = settings.current()
    found: dict[str, Any] = {}
    if state.accuracy != "standard":
        found["accuracy"] = state.accuracy
    if state.allow_tf32:
        found["allow_tf32"] = True
    return found


def key_of(problem: Any, target: Any) -> Key:
    """The key under which the times of a problem on a device are kept; TypeError where it cannot be written."""
    exact = target.fingerprint
    fingerprint = str(exact() if callable(exact) else exact)
    family = str(getattr(target, "family_fingerprint", None) or getattr(target, "arch", fingerprint))
    return Key(problem.stem, dump(fields_of(problem)), dump(settings_document()), fingerprint, family)


@functools.cache
def toolchain() -> str:
    """What compiled the kernels, in words; it is kept beside a time and asked by nobody but people."""
    metadata = importlib.import_module("importlib.metadata")
    found = [f"numbaprims {importlib.import_module('numbaprims').__version__}"]
    for name in ("numba", "llvmlite", "numba-cuda"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
