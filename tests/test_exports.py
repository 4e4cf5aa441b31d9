"""Files of tuning records as JSON lines: exported, imported, shipped, and written by strangers."""

import dataclasses
import json
import sqlite3
import warnings
from pathlib import Path

import pytest
from database_user import KINDS, anew, chosen, in_force, key, opened, record, result_is_right

import numbaprims
from numbaprims.dispatch import examples, registry
from numbaprims.dispatch.check import bound
from numbaprims.tuning import database

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    with anew(monkeypatch):
        yield


@pytest.fixture
def user(tmp_path):
    with in_force(tmp_path / "of user" / "tuning.sqlite") as path:
        yield path


def test_export_and_import_are_inverse(user, tmp_path):
    own = database.user()
    own.store(key(), [record("naive"), record("row_block", 2e-6)])
    own.store(dataclasses.replace(key(), stem="gemm"), [record("blocked", config={"mr": 3, "way": "wide"})])
    file = tmp_path / "times.jsonl"
    assert database.export_file(file) == 3 and database.export_file(tmp_path / "one", stem="gemm") == 1
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["stem"] for line in lines} == {"ger", "gemm"} and all(line["schema"] == 1 for line in lines)
    assert all(isinstance(line["problem"], dict) and line["problem"]["m"] == 24 for line in lines), "people can read it"
    before = list(own.everything())
    other = tmp_path / "other.sqlite"
    opened.add(str(other))
    with numbaprims.config(database=other):
        assert database.import_file(file) == 3
        assert list(database.user().everything()) == before
        assert chosen() == ("naive", "user database")


def line_of(**changes):
    """A line of an exported file, with some fields changed."""
    return json.dumps({"schema": 1, **key().document(), **record("naive").document(), **changes}).encode()


HOSTILE = {
    "cut": (b"{", "Expecting property name"),
    "another schema": (lambda: line_of(schema=7), "its schema is 7"),
    "true for a schema": (lambda: line_of(schema=True), "its schema is True"),
    "no solver": (lambda: line_of(solver=None), "its solver is None"),
    "no object": (b"[1]", "not a JSON object"),
    "nested": (b"[" * 60_000, "more than 100 lists"),
    "nested and closed": (
        lambda: line_of(problem=1).replace(b'm": 1', b'm": {"m":' + b"[" * 900 + b"]" * 900 + b"}"),
        "",
    ),
    "nested config": (lambda: line_of(config={"mr": 1}).replace(b'mr": 1', b'mr": ' + b"[" * 900 + b"]" * 900), ""),
    "longer than a line": (b'{"a": "' + b"x" * 300_000 + b'"}', "longer than 65536 bytes"),
    "no UTF-8": (b"\xff" + b'{"schema": 1}', "can't decode byte"),
    "no UTF-8 in a name": (lambda: line_of(solver="name").replace(b"name", b"na\xe4ve", 1), ""),
    "half a character": (lambda: line_of(toolchain="\ud800"), "its toolchain is"),
    "half a character in a config": (lambda: line_of(config={"a": "\udfff"}), "its config is"),
    "UTF-16": (lambda: line_of().decode().encode("utf-16"), "can't decode byte"),
    "NaN": (lambda: line_of(seconds=float("nan")), "its seconds are nan"),
    "infinity": (lambda: line_of(seconds=float("inf")), "its seconds are inf"),
    "nothing": (lambda: line_of(seconds=0), "its seconds are 0"),
    "400 digits": (lambda: line_of(seconds=10**400), "its seconds are 1000"),
    "5000 digits": (lambda: line_of(threads=7).replace(b'threads": 7', b'threads": ' + b"9" * 5000), "limit"),
    "65 bits": (lambda: line_of(version=1 << 64), "its version is 18446744073709551616"),
    "65 bits in a config": (lambda: line_of(config={"a": 1 << 64}), "its config is"),
    "true in a config": (lambda: line_of(config={"a": True}), "its config is"),
    "an error of NaN": (lambda: line_of(error=float("nan")), "its error is nan"),
    "an infinite field": (lambda: line_of(problem={"m": float("inf")}), "not JSON compliant"),
    "two of a name": (lambda: line_of(seconds=1.0).replace(b"{", b'{"seconds": 2.0, ', 1), "two fields of a name"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_line_that_is_no_record_costs_a_warning_and_nothing_else(user, tmp_path, name):
    line, says = HOSTILE[name]
    file = tmp_path / "times.jsonl"
    lines = [line_of(), line() if callable(line) else line, b"", line_of(solver="row_block", seconds=1.0), b"\r"]
    file.write_bytes(b"\n".join(lines))
    with pytest.warns(RuntimeWarning, match="1 line is not used; line 2: ") as caught:
        assert database.import_file(file) == 2
    [said] = [str(w.message) for w in caught]
    assert says in said and len(said) < 500
    assert {r.solver for _, r in database.user().everything()} == {"naive", "row_block"}, "those beside it are there"
    assert chosen() == ("naive", "user database")


def test_many_bad_lines_are_one_warning(user, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "IMPORT", 7)
    file = tmp_path / "times.jsonl"
    good = [line_of(problem={"m": i}) for i in range(30)]
    file.write_bytes(
        b"\n".join(line for i in range(30) for line in (b"{%d" % i, good[i], b"x" * (database.LINE_LIMIT + i)))
    )
    with pytest.warns(RuntimeWarning, match="60 lines are not used; line 1: ") as caught:
        assert database.import_file(file) == 30
    assert len(caught) == 1 and len(list(database.user().everything())) == 30
    with pytest.raises(OSError):
        database.import_file(tmp_path / "nowhere")


@pytest.mark.parametrize("column, value", [
    ("config", "[" * 100_000), ("config", b"\xff"), ("config", None), ("config", '{"a": 1, "a": 2}'),
    ("written", "yesterday"), ("solver", b"\0"), ("seconds", "soon"), ("threads", None), ("fingerprint", None),
])  # fmt: skip
def test_rows_that_a_stranger_wrote_cost_a_warning(user, column, value):
    """The database is data: whatever stands in it, a call comes to its end and is right."""
    own = database.user()
    for fingerprint in (key().fingerprint, "another"):
        own.store(dataclasses.replace(key(), fingerprint=fingerprint), [record("naive"), record("row_block")])
    with sqlite3.connect(user) as connection:
        connection.execute("CREATE TABLE copy AS SELECT * FROM records")
        connection.execute("DROP TABLE records")
        connection.execute("ALTER TABLE copy RENAME TO records")
        connection.execute(f"UPDATE records SET {column}=? WHERE solver='naive'", (value,))
    connection.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert chosen()[0] in KINDS and result_is_right() and len(list(own.everything())) >= 2


def test_shipped_files_are_whole():
    """Every record was checked, and its error is one that rounding explains."""
    for file in Path(database.shipped_file("x")).parent.glob("*.jsonl"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            entries = list(database.parse(file.read_bytes().splitlines(), str(file)))
        assert entries and all(database.shipped_file(k.family) == str(file) for k, _ in entries)
        assert len(entries) == len(file.read_bytes().splitlines())
        for place, entry in entries:
            problem = examples.restore(place.stem, json.loads(place.problem))
            solver = next(s for s in registry.solvers(place.stem, "cpu") if s.name == entry.solver)
            tolerance = bound(
                problem.y_dtype if place.stem == "conv" else problem.out_dtype,
                solver.amplification * problem.roundings(),
                1.0,
            )
            assert entry.error is not None and 0 < entry.error < tolerance, (place.problem, entry)
