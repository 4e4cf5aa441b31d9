"""The tuning databases: the user's (sqlite), over the one that ships with the package (JSON lines).

Whatever is wrong with a database costs one warning and the time that it would have saved: nothing here raises for a
file that is corrupt, cut short, read-only, locked, or somebody else's. A lookup costs 0.1 ms, on the first call of a
problem only; where there is no file, sqlite is not even imported.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from numbaprims import settings
from numbaprims.tuning.records import RELATED, SCHEMA, Key, Record, load
from numbaprims.tuning.trouble import warn_once

if TYPE_CHECKING:
    from numbaprims.tuning.user_file import Database

USER, SHIPPED = "user database", "shipped database"
FILE = "tuning.sqlite"

# ---------------------------------------------------------------- the two databases


@functools.cache
def _database(path: str) -> Database | None:
    try:
        from numbaprims.tuning.user_file import Database
    except ImportError as error:  # a Python that was built without sqlite
        warn_once(path, f"this Python has no sqlite3 ({error}); estimates are used instead")
        return None
    return Database(path)


def user_path() -> str:
    """File of the user's database; "" where the settings want none."""
    state = settings.current()
    if state.database is not None:
        return state.database
    return os.path.join(_directory(state.cache_dir), FILE)


@functools.cache
def _directory(chosen: str | None) -> str:
    if chosen is None:
        import platformdirs

        chosen = platformdirs.user_cache_dir("numbaprims", appauthor=False)
    return chosen


def user() -> Database | None:
    """The user's database; None where the settings want none, or no home directory is known."""
    path = user_path()
    return _database(path) if os.path.isabs(path) else None


def lookup(key: Key) -> list[tuple[str, str, list[Record]]]:
    """(rule, file, records) of all databases that know a key, the one that counts most first."""
    found: list[tuple[str, str, list[Record]]] = []
    own = user() if os.path.exists(user_path()) or _database.cache_info().currsize else None
    if own is not None:
        found += [(USER + which, own.path, records) for which, records in own.lookup(key)]
    if settings.current().database != "":
        name, known = _shipped(key.family)
        machines = known.get((key.stem, key.problem, key.settings), {})
        for fingerprint in sorted(machines, key=lambda machine: machine != key.fingerprint):
            rule = SHIPPED if fingerprint == key.fingerprint else SHIPPED + RELATED
            found.append((rule, name, machines[fingerprint]))
    return found


_Shipped = dict[tuple[str, str, str], dict[str, list[Record]]]


def shipped_file(family: str) -> str:
    """The file of the package that holds the times of a family of CPUs."""
    name = "".join(c if c.isalnum() or c in "_-." else "_" for c in family)
    return os.path.join(os.path.dirname(__file__), "shipped", name + ".jsonl")


@functools.cache
def _shipped(family: str) -> tuple[str, _Shipped]:
    """The records that ship for a family, by problem and then by machine."""
    path = shipped_file(family)
    found: _Shipped = {}
    try:
        with open(path, "rb") as file:
            entries = list(parse(lines_of(file), path))
    except FileNotFoundError:
        return path, found
    except OSError as error:
        warn_once(path, f"it cannot be read ({error}); estimates are used instead")
        return path, found
    unchecked = 0
    for key, record in entries:
        if record.error is None:
            unchecked += 1
            continue
        place = found.setdefault((key.stem, key.problem, key.settings), {})
        place.setdefault(key.fingerprint, []).append(record)
    if unchecked:
        warn_once(path, f"{unchecked} of its records were not checked (tune --export FILE --check) and are not used")
    return path, found


# ---------------------------------------------------------------- files of JSON lines


LINE_LIMIT = 1 << 16
"""Bytes of a line; a record takes one thousand."""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one that exceeds the limit no more than one byte beyond it."""
    while line := file.readline(LINE_LIMIT + 1):
        yield line
        while len(line) > LINE_LIMIT and not line.endswith(b"\n"):
            line = file.readline(LINE_LIMIT + 1)  # the rest, up to the next line


def parse(lines: Iterable[bytes], name: str) -> Iterator[tuple[Key, Record]]:
    """The entries of an exported file, which a stranger may have written.

    A line that is none is passed over; one warning at the end says how many, and what is wrong with the first.
    """
    bad, first = 0, ""
    for number, line in enumerate(lines, 1):
        try:
            if not line.strip():
                continue
            if len(line) > LINE_LIMIT:
                raise ValueError(f"it is longer than {LINE_LIMIT} bytes")
            document = load(line.decode())
            key, record = Key.of_document(document), Record.of_document(document)
            schema = document.get("schema")
            if schema != SCHEMA or isinstance(schema, bool):
                raise ValueError(f"its schema is {schema!r}; this release knows {SCHEMA}")
        except ValueError as error:
            bad, first = bad + 1, first or f"line {number}: {str(error)[:200]}"
            continue
        yield key, record
    if bad:
        warn_once(name, f"{bad} line{'s are' if bad > 1 else ' is'} not used; {first}")


def export_file(
    path: str | os.PathLike[str],
    stem: str | None = None,
    only: Callable[[Iterable[tuple[Key, Record]]], Iterable[tuple[Key, Record]]] = iter,
) -> int:
    """Write the user's database as JSON lines, one record a line; give their number.

    `only` says which of them: `numbaprims.dispatch.ship.checked` for a file that is to ship.

    Raises:
        OSError: the file cannot be written.
    """
    own = user()
    entries = [(key, record) for key, record in (own.everything() if own else ()) if stem in (None, key.stem)]
    lines = [json.dumps({"schema": SCHEMA, **key.document(), **record.document()}) for key, record in only(entries)]
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return len(lines)


def import_file(path: str | os.PathLike[str]) -> int:
    """Add the records of an exported file to the user's database, in the place of those it has; give their number.

    Lines that are no records are passed over, with one warning. Whether a config suits its solver is looked at when it
    is used.

    Raises:
        OSError: the file cannot be read.
    """
    own, count = user(), 0
    with open(path, "rb") as file:
        entries = parse(lines_of(file), os.fspath(path))
        while some := list(itertools.islice(entries, IMPORT)):
            count += len(some) if own is not None and own.add(some) else 0
    return count


IMPORT = 10_000
"""Records that are held in memory at a time."""
