"""The user's tuning database: one sqlite file.

Nothing here raises for a file that is corrupt, cut short, read-only, locked, or somebody else's. sqlite keeps a
rollback journal and no write-ahead log, which needs memory shared between processes: home directories lie on network
file systems.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from numbaprims import forks
from numbaprims.kernel_cache import make_private
from numbaprims.tuning.records import RELATED, SCHEMA, Key, Record, dump, load
from numbaprims.tuning.trouble import warn_once

APPLICATION = 0x6E707274  # "nprt": tells our file from another sqlite database
READ_SECONDS = 0.25  # what a call may wait for a writer
WRITE_SECONDS = 20.0

_TABLES = """
CREATE TABLE IF NOT EXISTS records (
    stem TEXT, problem TEXT, settings TEXT, fingerprint TEXT, family TEXT, solver TEXT, version INTEGER, config TEXT,
    seconds REAL, threads INTEGER, toolchain TEXT, written REAL,
    PRIMARY KEY (stem, problem, settings, fingerprint, solver)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS families ON records (stem, problem, settings, family);
DROP TABLE IF EXISTS trials;  -- of releases that did not check results
CREATE TABLE IF NOT EXISTS tried (
    stem TEXT, problem TEXT, settings TEXT, fingerprint TEXT, solver TEXT, version INTEGER, config TEXT,
    threads INTEGER, seconds REAL, toolchain TEXT, written REAL,
    PRIMARY KEY (stem, problem, settings, fingerprint, solver, version, config, threads)
) WITHOUT ROWID;
"""


class Database:
    """One sqlite file. Every method answers for a file that cannot be used as for an empty one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = forks.lock()
        self._reader: sqlite3.Connection | None = None
        self._opened: tuple[int, ...] = ()
        self._bad: tuple[int, ...] = ()
        self._abandoned: list[sqlite3.Connection] = []
        self._kept: dict[Key, list[Record]] = {}
        """What could not be written: it counts in this process."""

    # ------------------------------------------------------------ reading
    def lookup(self, key: Key) -> list[tuple[str, list[Record]]]:
        """(what they are, records) for a key: those of exactly this CPU first, then those of its family."""
        with self._lock:
            kept = self._kept.get(key)
            rows = self._read(
                "SELECT fingerprint, solver, version, config, seconds, threads, toolchain, written FROM records"
                " WHERE stem=? AND problem=? AND settings=? AND family=?",
                (key.stem, key.problem, key.settings, key.family),
            )
        found: list[tuple[str, list[Record]]] = [("", kept)] if kept else []
        exact = self._records(row for row in rows if row[0] == key.fingerprint)
        if exact:
            found.append(("", exact))
        others: dict[str, list[Any]] = {}
        for row in rows:
            if row[0] != key.fingerprint:
                others.setdefault(row[0], []).append(row)
        # of several machines the one that was measured last
        for group in sorted(others.values(), key=lambda group: max(_written(row[7]) for row in group), reverse=True):
            if records := self._records(group):
                found.append((RELATED, records))
        return found

    def _records(self, rows: Iterable[Any]) -> list[Record]:
        found = []
        for _, solver, version, config, seconds, threads, toolchain, _ in rows:
            document = {
                "solver": solver, "version": version, "seconds": seconds, "threads": threads, "toolchain": toolchain,
            }  # fmt: skip
            try:
                found.append(Record.of_document({**document, "config": load(config)}))
            except (TypeError, ValueError) as error:
                warn_once(self.path, f"an entry of solver {solver!r} is not used: {error}")
        return found

    def trials(self, key: Key, threads: int) -> dict[tuple[str, int, str], float]:
        """(solver, version, config as canonical JSON) -> seconds, of all that `tune` has tried on this CPU; infinite
        for what failed, was wrong, or too slow to be begun."""
        if not self._read("SELECT 1 FROM sqlite_master WHERE name='tried'", ()):  # made before results were checked
            return {}
        rows = self._read(
            "SELECT solver, version, config, seconds FROM tried"
            " WHERE stem=? AND problem=? AND settings=? AND fingerprint=? AND threads=?",
            (key.stem, key.problem, key.settings, key.fingerprint, threads),
        )
        return {
            (solver, version, config): math.inf if seconds is None else float(seconds)
            for solver, version, config, seconds in rows
            if seconds is None or isinstance(seconds, (int, float)) and seconds > 0
        }

    def everything(self) -> Iterator[tuple[Key, Record]]:
        """All records, in a fixed order."""
        for row in self._read(
            "SELECT stem, problem, settings, fingerprint, family, solver, version, config, seconds, threads, toolchain"
            " FROM records ORDER BY stem, problem, settings, fingerprint, solver",
            (),
        ):
            values = dict(zip(("solver", "version", "config", "seconds", "threads", "toolchain"), row[5:], strict=True))
            try:
                document = {"stem": row[0], "fingerprint": row[3], "family": row[4]}
                document |= {"problem": load(row[1]), "settings": load(row[2])}
                yield (
                    Key.of_document(document),
                    Record.of_document({**values, "config": load(values["config"])}),
                )
            except (TypeError, ValueError) as error:
                warn_once(self.path, f"an entry is left out: {error}")

    def _read(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        with self._lock:
            try:
                try:
                    return self._rows(query, values)
                except sqlite3.OperationalError as error:
                    if getattr(error, "sqlite_errorname", "") != "SQLITE_READONLY_ROLLBACK":
                        raise
                    # a writer was killed: a connection that may write undoes what it left unfinished
                    with contextlib.closing(self._writer(READ_SECONDS)) as connection:
                        connection.execute("SELECT 1 FROM sqlite_master").fetchall()
                    return self._rows(query, values)
            except sqlite3.OperationalError as error:
                if "locked" in str(error) or "busy" in str(error):
                    warn_once(self.path, f"it is locked by another process ({error}); estimates are used meanwhile")
                else:
                    self._give_up(error)
            except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
                self._give_up(error)
            return []

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        connection = self._connection()
        return [] if connection is None else connection.execute(query, values).fetchall()

    def _give_up(self, error: Exception) -> None:
        """Until the file changes it is not looked at again."""
        self._close()
        self._bad = self._state()
        warn_once(self.path, f"it cannot be read ({error}); estimates are used instead")

    def _state(self) -> tuple[int, ...]:
        """Tells one state of the file from another; () where there is none."""
        try:
            info = os.stat(self.path)
        except OSError:
            return ()
        return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size

    def _connection(self) -> sqlite3.Connection | None:
        """The connection of this process for reading; None where there is nothing to read."""
        state = self._state()
        if not state or state[3] == 0 or state == self._bad:
            return None
        opened = (os.getpid(), *state[:2])
        if self._reader is None or self._opened != opened:
            self._close()
            connection = sqlite3.connect(
                f"{_uri(self.path)}?mode=ro", uri=True, timeout=READ_SECONDS, check_same_thread=False,
                isolation_level=None,
            )  # fmt: skip
            try:
                self._check_ours(connection)
            except BaseException:
                connection.close()
                raise
            self._reader, self._opened = connection, opened
        return self._reader

    def close(self) -> None:
        """Close the connection for reading; the next lookup opens another."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._reader is None:
            return
        if self._opened[0] == os.getpid():
            self._reader.close()
        else:
            # a connection that came through a fork: closing it would drop the parent's locks on the file
            self._abandoned.append(self._reader)
        self._reader = None

    @staticmethod
    def _check_ours(connection: sqlite3.Connection) -> None:
        """Raise ValueError for a database of another program or of a later release."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION:
            raise ValueError("it is a database of another program")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise ValueError(f"its schema is {version}, of a later release; this one knows {SCHEMA}")

    # ------------------------------------------------------------ writing
    def store(self, key: Key, found: list[Record], *, solvers: Collection[str] | None = None) -> bool:
        """Replace what is known of a key on this CPU (of some solvers, if they are named); False where it could be kept
        in this process's memory only.

        All of a key's records are replaced at once: they were measured together, and are compared with each other.
        """
        place = "DELETE FROM records WHERE stem=? AND problem=? AND settings=? AND fingerprint=?"
        old = (place, [_place(key)]) if solvers is None else (
            f"{place} AND solver=?", [(*_place(key), solver) for solver in solvers]
        )  # fmt: skip
        kept = self._write([old, (_INSERT_RECORD, [_row(key, record) for record in found])])
        with self._lock:
            others = [r for r in self._kept.pop(key, []) if solvers is not None and r.solver not in solvers]
            if not kept:
                self._kept[key] = [*others, *found]
        return kept

    def add_trials(self, key: Key, found: list[Record]) -> bool:
        """Note configs that were tried, so that `tune` need not try them again."""
        rows = [
            (
                *_place(key),
                r.solver,
                r.version,
                dump(r.config),
                r.threads,
                None if r.seconds == math.inf else r.seconds,
                r.toolchain,
                time.time(),
            )
            for r in found
        ]
        return self._write([("INSERT OR REPLACE INTO tried VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows)])

    def add(self, entries: Iterable[tuple[Key, Record]]) -> bool:
        """Add records one by one, each in the place of its key's and solver's; False as for `store`."""
        given = list(entries)
        kept = self._write([(_INSERT_RECORD, [_row(key, record) for key, record in given])])
        if not kept:
            with self._lock:
                for key, record in given:
                    others = [other for other in self._kept.get(key, []) if other.solver != record.solver]
                    self._kept[key] = [*others, record]
        return kept

    def _write(self, statements: list[tuple[str, list[Any]]]) -> bool:
        """Run statements in one transaction; False, with a warning, where the file takes none."""
        with self._lock:
            for attempt in (1, 2):
                try:
                    with contextlib.closing(self._writer(WRITE_SECONDS)) as connection:
                        connection.execute("BEGIN IMMEDIATE")
                        self._prepare(connection)
                        for statement, rows in statements:
                            connection.executemany(statement, rows)
                        connection.execute("COMMIT")
                    self._bad = ()
                    return True
                except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
                    if attempt == 1 and _is_corrupt(error) and self._set_aside(error):
                        continue
                    warn_once(self.path, f"it cannot be written ({error}); results count in this process only")
                    return False
        return False

    def _writer(self, seconds: float) -> sqlite3.Connection:
        make_private(os.path.dirname(self.path))
        return sqlite3.connect(self.path, timeout=seconds, isolation_level=None)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file; ValueError for one that is not ours."""
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            connection.execute(f"PRAGMA application_id={APPLICATION}")
            connection.execute(f"PRAGMA user_version={SCHEMA}")
        self._check_ours(connection)
        for statement in _TABLES.split(";"):
            connection.execute(statement)

    def _set_aside(self, error: Exception) -> bool:
        """Rename a file that is no database any more, so that a new one can be begun."""
        aside = f"{self.path}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            self._close()
            os.replace(self.path, aside)
        except OSError:
            return False
        warn_once(
            self.path, f"it is corrupt ({error}) and was renamed to {os.path.basename(aside)}; a new one is begun"
        )
        return True


def _written(value: Any) -> float:
    return value if isinstance(value, (int, float)) else 0.0


_INSERT_RECORD = "INSERT OR REPLACE INTO records VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"


def _place(key: Key) -> tuple[str, ...]:
    return key.stem, key.problem, key.settings, key.fingerprint


def _row(key: Key, record: Record) -> tuple[Any, ...]:
    return (
        *_place(key), key.family, record.solver, record.version, dump(record.config), record.seconds, record.threads,
        record.toolchain, time.time(),
    )  # fmt: skip


def _is_corrupt(error: Exception) -> bool:
    words = ("not a database", "malformed", "disk image")
    return isinstance(error, sqlite3.DatabaseError) and any(word in str(error) for word in words)


def _uri(path: str) -> str:
    path = path.replace(os.sep, "/")
    return "file:" + quote(path if path.startswith("/") else f"/{path}", safe="/:")
