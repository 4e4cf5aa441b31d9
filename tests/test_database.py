"""The tuning database: keys, what is kept, and everything that can be wrong with a file."""

import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from database_user import KINDS, anew, chosen, in_force, key, record, result_is_right

import numbaprims
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.tuning import database, records
from numbaprims.tuning.user_file import Database

pytestmark = pytest.mark.cpu
ROOT = Path(numbaprims.__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    with anew(monkeypatch):
        yield


@pytest.fixture
def user(tmp_path):
    with in_force(tmp_path / "of user" / "tuning.sqlite") as path:
        yield path


# ---------------------------------------------------------------- what is chosen


def test_order_of_the_rules(user, tmp_path, monkeypatch):
    target = registry.target("cpu")
    before, rule = chosen()
    assert rule == "least estimated time" and not user.exists(), "a lookup makes no file"
    other = next(name for name in KINDS if name != before)
    shipped = tmp_path / "shipped.jsonl"
    monkeypatch.setattr(database, "shipped_file", lambda family: str(shipped))

    def ship(solver, fingerprint, error=0.0):
        entry = dataclasses.replace(key(), fingerprint=fingerprint), record(solver, error=error)
        shipped.write_text(json.dumps({"schema": 1, **entry[0].document(), **entry[1].document()}) + "\n")
        database._shipped.cache_clear()

    ship(other, "znver9-another")
    assert chosen() == (other, "shipped database, another machine of the family")
    ship(other, target.fingerprint, error=None)
    with pytest.warns(RuntimeWarning, match="1 of its records were not checked"):
        assert chosen() == (before, "least estimated time")
    ship("naive", target.fingerprint)
    assert chosen() == ("naive", "shipped database")
    own = database.user()
    own.store(dataclasses.replace(key(), fingerprint="znver9-another"), [record("row_block")])
    assert chosen() == ("row_block", "user database, another machine of the family")
    own.store(key(), [record("register_block", 2e-6), record("naive", 1e-3)])
    assert chosen() == ("register_block", "user database")
    with numbaprims.config(algorithm={"ger": "naive"}):
        assert chosen() == ("naive", "forced by the settings")
    with numbaprims.config(deterministic=True):
        assert chosen() == (before, "least estimated time")
    with numbaprims.config(database="off"):
        assert chosen() == (before, "least estimated time")
    # another family's times are nobody's business here
    shipped.unlink()
    database._shipped.cache_clear()
    own.store(key(), [])
    own.store(dataclasses.replace(key(), fingerprint="znver9-another"), [])
    own.store(dataclasses.replace(key(), fingerprint="m1", family="arm64-m1"), [record("naive")])
    assert chosen() == (before, "least estimated time")


def test_a_stored_config_is_the_one_that_is_bound(user):
    a, b = np.ones((64, 300), np.float32), np.ones((300, 96), np.float32)
    problem = problem_of("gemm", a, b)
    target = registry.target("cpu")
    solver = next(s for s in registry.solvers("gemm", "cpu") if s.name == "private")
    config = dict(next(iter(solver.configs(problem, target))))
    database.user().store(key(problem), [record("private", config=config, version=solver.version)])
    table = numbaprims.explain("gemm", a, b)
    assert table.chosen.solver == "private" and table.chosen.config == config
    assert table.chosen.measured == 1e-6 and table["naive"].measured is None
    assert np.array_equal(numbaprims.gemm(a, b), a @ b)


def test_the_estimates_choose_where_nothing_valid_is_stored(user):
    before, _ = chosen()
    own = database.user()
    own.store(key(), [record("no_such_solver"), record("naive", config={"mr": 3}), record("row_block", version=99)])
    with pytest.warns(RuntimeWarning) as caught:
        assert chosen() == (before, "least estimated time")
    said = sorted(str(w.message) for w in caught)
    assert len(said) == 2 and "no solver 'no_such_solver'" in said[0] and "no config {'mr': 3}" in said[1]
    assert all(str(user) in text for text in said)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen()[0] == before and result_is_right(), "it is said once"
    # one bad entry does not spoil the good one beside it
    own.store(key(), [record("no_such_solver", 1e-9), record("row_block", 1e-6)])
    assert chosen() == ("row_block", "user database")


def test_a_solver_that_refuses_the_problem_is_not_chosen(user):
    a = np.ones((40, 50), np.float32)
    before = numbaprims.explain("gemm", a, a.T)
    assert before["vector"].refusal is not None
    database.user().store(key(before.problem), [record("vector", 1e-9)])
    assert numbaprims.explain("gemm", a, a.T).chosen.solver == before.chosen.solver


def test_rows_that_are_no_records_are_left_out(user):
    before, _ = chosen()
    own = database.user()
    own.store(key(), [record("naive")])
    with sqlite3.connect(user) as connection:
        connection.execute("UPDATE records SET config='{', seconds=-1")
    connection.close()
    with pytest.warns(RuntimeWarning, match="an entry of solver 'naive' is not used"):
        assert chosen() == (before, "least estimated time")
    with pytest.warns(RuntimeWarning, match="an entry is left out"):
        assert list(own.everything()) == []


# ---------------------------------------------------------------- files that cannot be used


def spoil_empty(path):
    path.write_bytes(b"")


def spoil_text(path):
    path.write_text("this is no database\n" * 500)


def spoil_head(path):
    with open(path, "r+b") as file:
        file.write(b"\0" * 40)


def spoil_middle(path):
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(1)[:1] * (len(data) - 4096)
    path.write_bytes(data)


def spoil_truncated(path):
    path.write_bytes(path.read_bytes()[:5000])


def spoil_foreign(path):
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE records (stem TEXT)")
    connection.commit()
    connection.close()


def spoil_later(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()


def spoil_directory(path):
    path.unlink()
    path.mkdir()


SPOILED = [
    (spoil_text, "it cannot be read"), (spoil_head, "it cannot be read"), (spoil_middle, "it cannot be read"),
    (spoil_truncated, "it cannot be read"), (spoil_foreign, "database of another program"),
    (spoil_later, "of a later release"), (spoil_directory, "it cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize("spoil, says", SPOILED, ids=[s.__name__[6:] for s, _ in SPOILED])
def test_a_bad_file_costs_one_warning_and_the_estimate_decides(user, spoil, says):
    before, _ = chosen()
    worst = next(name for name in KINDS if name != before)
    own = database.user()
    many = [dataclasses.replace(key(), problem=records.dump({"m": i})) for i in range(60)]
    own.add((k, record("naive")) for k in many)  # several pages
    own.store(key(), [record(worst)])
    assert chosen() == (worst, "user database")
    own.close()
    spoil(user)
    with pytest.warns(RuntimeWarning, match=says) as caught:
        assert chosen() == (before, "least estimated time") and result_is_right()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen()[0] == before and result_is_right()
    # what is found now counts: in a new file where the old one is no database, else in this process
    with pytest.warns(RuntimeWarning, match="was renamed|cannot be written") as caught:
        kept = own.store(key(), [record(worst)])
    assert chosen() == (worst, "user database")
    if kept:
        assert [p.name for p in user.parent.iterdir() if "corrupt" in p.name], "the old file is still there"
        assert dict(own.everything())[key()] == record(worst)
    elif spoil is not spoil_directory:
        connection = sqlite3.connect(user)
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        connection.close()
        assert tables == ({"records"} if spoil is spoil_foreign else {"records", "tried"}), "it was left alone"


def test_an_empty_file_is_a_new_one(user):
    user.parent.mkdir()
    spoil_empty(user)
    before, rule = chosen()
    assert rule == "least estimated time"
    assert database.user().store(key(), [record("naive")]) and chosen() == ("naive", "user database")


def test_no_home_directory_is_no_error(monkeypatch):
    monkeypatch.setattr(database, "_directory", lambda chosen: "")
    with numbaprims.config(database=None):
        numbaprims.config.set(database="")  # the process default of the tests is "off"
        assert database.user() is None and result_is_right()
        assert database.import_file(os.devnull) == 0


def test_a_path_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "below" / "tuning.sqlite"
    with numbaprims.config(database=path):
        own = database.user()
        with pytest.warns(RuntimeWarning, match="cannot be written.*this process only"):
            assert own.store(key(), [record("naive")]) is False
        assert chosen() == ("naive", "user database") and result_is_right(), "it counts here all the same"
        assert own.add([(key(), record("row_block", 1e-9)), (key(), record("row_block", 1e-7))]) is False
        assert own.lookup(key()) == [("", [record("naive"), record("row_block", 1e-7)])]
        assert chosen() == ("row_block", "user database")


READ_ONLY = """
import os, sys, warnings
import numpy as np, numbaprims
from numbaprims.dispatch import registry
from numbaprims.tuning import database, records
x = np.ones(24, np.float32)
with numbaprims.config(database="off"):  # everything is imported while it can be read
    numbaprims.find("ger", x, x)
    numbaprims.explain("ger", x, x)
    key = records.key_of(numbaprims.explain("ger", x, x).problem, registry.target("cpu"))
import sqlite3, numbaprims.tuning.user_file
records.toolchain()
database._shipped(key.family)  # of a checkout in a private folder, too
if os.getuid() == 0:  # root may write everywhere, so the test becomes somebody else
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
warnings.simplefilter("error")
table = numbaprims.explain("ger", x, x)
assert (table.chosen.solver, table.rule) == ("naive", "user database"), str(table)
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    done = database.user().store(key, [records.Record("row_block", 1, {}, 1e-7, 2, "")])
assert done is False and len(caught) == 1 and "cannot be written" in str(caught[0].message), caught
assert numbaprims.explain("ger", x, x).chosen.solver == "row_block"
found = numbaprims.find("ger", x, x)
assert len(found) == 3 and (numbaprims.ger(x, x) == 1).all()
print("fine")
"""


def test_a_read_only_directory_is_read_and_not_written(tmp_path):
    folder = Path(tempfile.mkdtemp(prefix="numbaprims-read-only-"))
    try:
        path = folder / "tuning.sqlite"
        made = Database(str(path))
        made.store(key(), [record("naive")])
        path.chmod(0o444)
        folder.chmod(0o555)
        before = path.read_bytes()
        env = dict(os.environ, PYTHONPATH=str(ROOT), NUMBAPRIMS_DATABASE=str(path))
        done = subprocess.run([sys.executable, "-c", READ_ONLY], env=env, capture_output=True, text=True)
        assert done.stdout == "fine\n", done.stderr
        assert path.read_bytes() == before and [p.name for p in folder.iterdir()] == ["tuning.sqlite"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_locked_file_makes_nobody_wait_long(user):
    before, _ = chosen()
    worst = next(name for name in KINDS if name != before)
    own = database.user()
    own.store(key(), [record(worst)])
    blocker = sqlite3.connect(user, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    began = time.perf_counter()
    with pytest.warns(RuntimeWarning, match="locked by another process"):
        assert chosen() == (before, "least estimated time")
    assert time.perf_counter() - began < 3
    blocker.execute("ROLLBACK")
    blocker.close()
    assert chosen() == (worst, "user database"), "it is read again as soon as that is over"


KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size=1")  # so that it writes before it commits
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE records SET solver='lost'")
for k in range(3000):
    connection.execute("INSERT INTO tried SELECT stem, ?, '', '', '', 1, '', 1, 1.0, '', 1.0 FROM records", (str(k),))
os._exit(9)
"""


@pytest.mark.parametrize("open_before", (True, False))
def test_what_a_killed_writer_left_is_undone(user, open_before):
    before, _ = chosen()
    worst = next(name for name in KINDS if name != before)
    own = database.user()
    own.store(key(), [record(worst)])
    assert chosen() == (worst, "user database")
    if not open_before:
        own.close()
    subprocess.run([sys.executable, "-c", KILLED, str(user)])
    journal = user.with_name(f"{user.name}-journal")
    assert journal.exists()
    numbaprims.dispatch.call.forget()
    assert chosen() == (worst, "user database") and not journal.exists()


WRITER = """
import dataclasses, sys
import numpy as np
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.tuning import records
from numbaprims.tuning import user_file
from numbaprims.tuning.user_file import Database
user_file.READ_SECONDS = 20.0  # the point here is what is written
me, x = int(sys.argv[2]), np.ones(24, np.float32)
own = Database(sys.argv[1])
shared = records.key_of(problem_of("ger", x, x), registry.target("cpu"))
print("ready", flush=True)
sys.stdin.readline()
for i in range(60):
    mine = dataclasses.replace(shared, problem=records.dump({"writer": me, "i": i}))
    both = [records.Record(name, 1, {"writer": me}, 1e-6 * (i + 1), 1, "") for name in ("a", "b", "c")]
    assert own.store(mine, both) and own.store(shared, both)
    assert own.add_trials(mine, both)
    (which, found), = own.lookup(shared)
    assert len(found) == 3 and len({(r.config["writer"], r.seconds) for r in found}) == 1, found
print("done")
"""


def test_two_processes_write_at_once(tmp_path):
    path = tmp_path / "tuning.sqlite"
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    writers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WRITER, str(path), str(me)],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for me in range(2)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        out, error = writer.communicate(timeout=120)
        assert out == "done\n" and writer.returncode == 0, error
    own = Database(str(path))
    found = list(own.everything())
    assert len(found) == (2 * 60 + 1) * 3, "nobody's records were lost, and of the shared key one writer's are there"
    assert len({r.config["writer"] for k, r in found if "writer" not in k.problem}) == 1
    own.close()


def test_threads_and_a_forked_child_share_it(user):
    own = database.user()
    own.store(key(), [record("naive")])
    failures = []

    def work(n):
        try:
            for i in range(20):
                mine = dataclasses.replace(key(), problem=records.dump({"n": n, "i": i}))
                assert own.store(mine, [record()]) and own.lookup(key())[0][1] == [record("naive")]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not failures and len(list(own.everything())) == 81
    if hasattr(os, "fork"):
        code = (
            "import os, sys\nfrom numbaprims.tuning.user_file import Database\nfrom numbaprims.tuning import records\n"
            "own = Database(sys.argv[1])\nfirst = next(iter(own.everything()))[0]\nown._lock.acquire()\n"
            "child = os.fork()\n"
            "if not child:\n    os._exit(0 if own.lookup(first) and own.store(first, []) else 3)\n"
            "own._lock.release()\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
            "assert own.lookup(first) == []\n"
        )
        env = dict(os.environ, PYTHONPATH=str(ROOT))
        done = subprocess.run([sys.executable, "-c", code, str(user)], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
