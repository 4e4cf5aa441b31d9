"""`find`: all solvers timed, the modes, the workspace limit, and what calls choose afterwards."""

import dataclasses
import functools
import importlib
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from solver_stubs import Stub, put, stored

import numbaprims
from numbaprims import cli
from numbaprims.dispatch import call, examples, find as finding, registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.dispatch.find import Finding
from numbaprims.ops import _activation_call, _gemm_pose, gemv, ger
from numbaprims.tuning import database, records, trouble, turns

pytestmark = pytest.mark.cpu
ROOT = Path(numbaprims.__file__).resolve().parent.parent
X = np.ones(24, np.float32)
GER = ["naive", "register_block", "row_block"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(trouble, "_said", set())
    monkeypatch.setattr(finding, "_done", set())
    call.forget()
    yield
    call.forget()


@pytest.fixture
def user(tmp_path):
    """A user database in force."""
    path = tmp_path / "tuning.sqlite"
    with numbaprims.config(database=path):
        yield path
        database.user().close()


def ones(*shape):
    return np.ones(shape, np.float32)


# ---------------------------------------------------------------- what it gives


@pytest.mark.parametrize("function, args", [
    ("gemm", (ones(33, 40), ones(40, 17))), ("gemv", (ones(33, 40), ones(40))), ("ger", (X, X)),
    ("gelu", (ones(7, 30),)), ("exp_backward", (ones(50), ones(50))), ("conv", (ones(1, 3, 8, 8), ones(4, 3, 3, 3))),
])  # fmt: skip
def test_every_solver_is_timed_and_held_to_the_reference(function, args):
    table = numbaprims.explain(function, *args)
    kept = [np.copy(x) for x in args]
    found = numbaprims.find(function, *args, check=True, store=False)
    assert sorted(f.algorithm for f in found) == sorted(row.solver for row in table if row.refusal is None)
    assert [f.seconds for f in found] == sorted(f.seconds for f in found) and found.best is found[0]
    assert isinstance(found, list) and found.problem == table.problem
    for f in found:
        assert (
            f.measured
            and 1e-8 < f.seconds < 1
            and f.workspace >= 0
            and dict(f.config) == dict(table[f.algorithm].config)
        )
        assert f.error is not None and f.error < 1e-5
    assert all(np.array_equal(a, b) for a, b in zip(args, kept, strict=True))


def test_in_place_problems_are_timed_on_operands_of_their_own():
    x = np.full(40, 0.5, np.float32)
    found = numbaprims.find("exp", x, out=x, check=True, store=False)
    assert (x == 0.5).all() and len(found) > 1 and all(f.error < 1e-6 for f in found), "each began with a fresh x"


def test_it_prints_as_a_table():
    found = numbaprims.find("ger", X, X, check=True, store=False)
    lines = str(found).splitlines()
    assert lines[0] == found.problem.bench_command()
    assert lines[1].split() == [name for name in found.HEADINGS if name not in ("config", "note")], "empty columns go"
    lines = found.table(wide=True).splitlines()
    assert lines[0] == str(found.problem) and lines[1].split() == list(found.HEADINGS)
    assert [line.split()[0] for line in lines[2:]] == [f.algorithm for f in found]
    assert len({line.index("GFLOP/s") if "GFLOP/s" in line else None for line in lines[1:2]}) == 1
    page = found._repr_html_()
    assert page.count("<tr>") == 1 + len(found) and page.count("<td>") == len(found) * len(found.HEADINGS)


PLACES = np.zeros(2, np.int64)
EMPTY = [
    ("gemm", (np.ones((0, 4)), np.ones((4, 4))), {}), ("gemm", (ones(3, 5), ones(5, 0)), {}),
    ("max_pool", (ones(0, 4, 4, 4), 2), {}), ("split", (ones(3, 0), 3), {}), ("lrn", (ones(2, 0, 5, 6), 3), {}),
    ("qlinear_activation", (np.zeros((0, 5), np.uint8), "tanh", 0.03, np.uint8(0), 0.01, np.uint8(13)), {}),
    ("batch_norm", (ones(2, 0, 5, 6), *[ones(0)] * 4), {}), ("batch_norm_train", (ones(2, 0, 5), ones(0), ones(0)), {}),
    ("attention", (ones(1, 2, 0, 8), *[ones(1, 2, 4, 8)] * 2), {}), ("gather", (ones(3, 0), PLACES), {}),
    ("attention", (ones(1, 0, 3, 8), *[ones(1, 0, 4, 8)] * 2), {}), ("embedding_backward", (ones(2, 0), PLACES, 3), {}),
    ("dropout", (ones(0, 3),), {"seed": 1}), ("dropout", (ones(3, 0),), {"seed": 1}), ("topk", (ones(3, 4), 0), {}),
    ("topk", (ones(3, 0), 0), {}), ("cumsum", (ones(0, 3), 0), {}), ("pad", (ones(0, 3), ((0, 0), (0, 0))), {}),
    ("resize", (ones(2, 0, 5, 6), (3, 4)), {}), ("rope", (ones(1, 2, 3, 0), ones(3, 0), ones(3, 0)), {}),
    ("conv", (ones(2, 3, 5, 0), ones(4, 3, 3, 1)), {"padding": 1}), ("prelu", (ones(0, 3, 5), ones(3)), {}),
    ("conv_transpose", (ones(2, 2, 0, 6), ones(2, 3, 3, 3)), {}),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["normal", "fast", "trust_verify"])
@pytest.mark.parametrize("function, args, words", EMPTY)
def test_what_is_empty_takes_no_time(function, args, words, mode, user):
    found = numbaprims.find(function, *args, mode=mode, **words)
    [only] = found
    assert found.best is only and only.seconds == 0 and not only.measured
    assert only.note == ("estimate" if mode == "fast" else "not begun: there is nothing to compute")
    assert only.note.split()[0] in str(found)


@pytest.mark.parametrize("function, args, words", EMPTY)
def test_what_is_empty_can_be_explained_and_is_not_tuned(function, args, words):
    with numbaprims.config(solver_workspace="1G"):
        table = numbaprims.explain(function, *args, **words, phases=True, measure=True)
        assert table.chosen.refusal is None and table.chosen.measured is None and "phases" not in str(table)
        assert numbaprims.explain(table.problem, measure=True).chosen.solver == table.chosen.solver
        assert numbaprims.find(table.problem, store=False).best.workspace == 0
    assert numbaprims.tune(table.problem, progress=False) == []


@pytest.mark.parametrize("function, args", [
    ("gemm", (ones(3, 0), ones(0, 4))), ("gemm", (np.ones((3, 0), np.int8), np.ones((0, 4), np.int8))),
    ("gemm", (ones(2, 3, 0), ones(2, 0, 4))), ("linear", (ones(3, 0), ones(4, 0))),
    ("pad", (ones(3, 0), ((0, 1), (1, 0)))),
])  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_operands_without_elements_are_no_fault_of_a_solver(function, args, user):
    """NumPy's functions do not agree on the strides of such arrays: the example may lie in another order."""
    found = numbaprims.find(function, *args, check=True)
    assert found.best.note == "not begun: there is nothing to compute" and stored(found.problem) == []
    assert numbaprims.tune([found.problem, problem_of("ger", X, X)], progress=False, budget=5)[0].problem.stem == "ger"


@pytest.mark.parametrize("function, args, mode", [
    ("resize", (ones(1, 2, 5, 6), (3, 4)), "linear"), (numbaprims.lrn, (ones(1, 2, 5, 6), 3), "within_channel"),
    ("pad", (ones(3, 5), ((0, 0), (1, 1))), "reflect"),
])  # fmt: skip
def test_a_mode_of_the_function_itself_is_passed_on(function, args, mode):
    found = numbaprims.find(function, *args, mode=mode, store=False)
    assert found.problem == problem_of(function, *args, mode=mode) and found.best.measured
    assert numbaprims.find(function, *args, mode="fast", store=False).best.note == "estimate"
    with pytest.raises(ValueError, match="mode is 'slow'"):
        numbaprims.find(function, *args, mode="slow")


def test_wrong_arguments():
    problem = problem_of("ger", X, X)
    with pytest.raises(ValueError, match="mode is 'slow'; it must be one of normal, fast, hybrid, trust_verify"):
        numbaprims.find(problem, mode="slow")
    with pytest.raises(ValueError, match="workspace_limit=-1: allowed is a number of bytes from 0"):
        numbaprims.find(problem, workspace_limit=-1)
    assert numbaprims.find(problem, workspace_limit="1M", mode="fast")
    for asked in (numbaprims.find, numbaprims.explain):
        with pytest.raises(ValueError, match="device is 'gpu'; it must be 'cpu', 'cuda', 'cuda:N' or 'emulated'"):
            asked(problem, device="gpu")
    with pytest.raises(TypeError, match="a problem alone"):
        numbaprims.find(problem, X)
    with pytest.raises(ValueError, match="is not a public function"):
        numbaprims.find("gerr", X, X)
    with pytest.raises(ValueError, match="use gemm for matrices"):
        numbaprims.find("ger", np.ones((2, 2)), np.ones(2))


# ---------------------------------------------------------------- solvers that are slow, wrong, or fail


@pytest.fixture
def stubs(monkeypatch):
    """A function that makes solvers those of ger."""
    return functools.partial(put, monkeypatch)


def test_a_hopeless_solver_gets_a_glance_and_stays_in_the_list(stubs, user):
    quick, slow, hopeless = Stub("quick", sleep=1e-4), Stub("slow", 2e-5, sleep=0.03), Stub("hopeless", 50.0, sleep=9.0)
    stubs(quick, slow, hopeless)
    began = time.perf_counter()
    found = numbaprims.find("ger", X, X)
    assert time.perf_counter() - began < 5
    assert [f.algorithm for f in found] == ["quick", "slow", "hopeless"]
    assert [f.note.split(":")[0] for f in found] == ["", "a glance", "not begun"]
    assert quick.calls > 50 and 2 <= slow.calls <= 4 and hopeless.calls == hopeless.binds == 0
    assert 0.03 <= found[1].seconds < 1 and not found[2].measured and found[2].seconds >= 50.0
    assert stored(found.problem) == ["quick", "slow"], "what was not measured is not stored"
    # never banned: alone, or when the estimate of the others is worse still, it is timed
    hopeless.sleep, hopeless.seconds = 0.0, 1e-5
    assert numbaprims.find("ger", X, X).best.algorithm == "hopeless"


def test_a_solver_that_fails_costs_the_others_nothing(stubs):
    stubs(Stub("broken", 1e-6, fails=True), Stub("fine"))
    found = numbaprims.find("ger", X, X, store=False)
    assert [f.algorithm for f in found] == ["fine", "broken"]
    assert found[1].seconds == math.inf and "no such instruction" in found[1].note and not found[1].measured


def test_the_workspace_limit(stubs, user):
    stubs(Stub("large", 1e-7, bytes=1 << 20), Stub("small", 1e-5))
    assert numbaprims.explain("ger", X, X).chosen.solver == "large"
    found = numbaprims.find("ger", X, X, workspace_limit=1 << 19, store=False)
    assert [f.algorithm for f in found] == ["small"]
    found = numbaprims.find("ger", X, X, workspace_limit=1 << 20, store=False)
    assert {f.algorithm: f.workspace for f in found} == {"large": 1 << 20, "small": 0}
    numbaprims.find("ger", X, X)
    numbaprims.find("ger", X, X, workspace_limit=0)
    known = numbaprims.find("ger", X, X, mode="fast")
    assert {f.algorithm for f in known} == {"large", "small"}, "a search under a limit keeps the times of the others"
    assert [f.algorithm for f in numbaprims.find("ger", X, X, mode="fast", workspace_limit=0)] == ["small"]
    with numbaprims.config(solver_workspace="512K"):
        table = numbaprims.explain("ger", X, X)
        assert table.chosen.solver == "small"
        assert table["large"].refusal == "it needs 1048576 bytes of scratch memory, and the limit is 524288"
        assert [f.algorithm for f in numbaprims.find("ger", X, X, store=False)] == ["small"]
        # a database that was filled without the limit does not override it
        key = records.key_of(table.problem, registry.target("cpu"))
        database.user().store(key, [records.Record("large", 1, {}, 1e-9, 2, "")])
        assert numbaprims.explain("ger", X, X).chosen.solver == "small"
    assert numbaprims.explain("ger", X, X).rule == "user database"


# ---------------------------------------------------------------- the modes


@pytest.fixture
def clock(monkeypatch):
    """Times by solver that a search finds, instead of measured ones; and the searches that were made."""
    times, searches = {"naive": 1e-6, "row_block": 2e-6, "register_block": 3e-6}, []

    def time_items(problem, device, items, *, check=False, schedule=None):
        searches.append([solver.name for solver, _, _ in items])
        return [Finding(s.name, config, times[s.name], 0) for s, config, _ in items]

    monkeypatch.setattr(finding, "time_items", time_items)
    return times, searches


def test_fast_times_nothing(user, clock):
    times, searches = clock
    first = numbaprims.find("ger", X, X, mode="fast")
    assert {f.note for f in first} == {"estimate"} and sorted(f.algorithm for f in first) == GER
    assert first.best.algorithm == numbaprims.explain("ger", X, X).chosen.solver
    assert not searches and not user.exists()
    numbaprims.find("ger", X, X)
    again = numbaprims.find("ger", X, X, mode="fast")
    assert [(f.algorithm, f.seconds, f.note) for f in again][0] == ("naive", 1e-6, "user database")
    assert len(searches) == 1


def test_hybrid_times_what_is_not_stored(user, clock):
    _, searches = clock
    assert numbaprims.find("ger", X, X, mode="hybrid").best.note == ""
    assert numbaprims.find("ger", X, X, mode="hybrid").best.note == "user database"
    assert len(searches) == 1
    numbaprims.find("ger", X, X[1:], mode="hybrid")
    assert len(searches) == 2


def test_trust_verify_keeps_a_winner_whose_time_holds(user, clock):
    times, searches = clock
    numbaprims.find("ger", X, X, mode="trust_verify")
    assert [len(s) for s in searches] == [3], "nothing was stored"
    times["naive"] = 1.4e-6
    found = numbaprims.find("ger", X, X, mode="trust_verify")
    assert found.best.note == "user database" and searches[1:] == [["naive"]]
    times["naive"] = 9e-6
    found = numbaprims.find("ger", X, X, mode="trust_verify")
    assert searches[2] == ["naive"] and sorted(searches[3]) == GER and found.best.algorithm == "row_block"
    assert numbaprims.explain("ger", X, X).chosen.solver == "row_block", "and the database knows it"


def test_a_plain_call_never_times_anything(user, clock):
    _, searches = clock
    numbaprims.ger(X, X)
    numbaprims.gemm(ones(5, 6), ones(6, 7))
    assert not searches and not user.exists() and numbaprims.settings.current().find_mode == "fast"


@pytest.mark.parametrize("mode, of_new, of_stored", [("normal", 1, 1), ("hybrid", 1, 0), ("trust_verify", 1, 1)])
def test_find_modes_of_plain_calls(user, clock, capfd, mode, of_new, of_stored):
    times, searches = clock
    numbaprims.ger(X, X)
    with numbaprims.config(find_mode=mode, verbose=1):
        for _ in range(3):
            assert (numbaprims.ger(X, X) == 1).all()
    assert len(searches) == of_new, "once for each problem, although a launcher was there already"
    assert capfd.readouterr().err.count("# naive, user database") == 3
    finding._done.clear()  # the next process
    call.forget()
    del searches[:]
    with numbaprims.config(find_mode=mode):
        numbaprims.ger(X, X)
        numbaprims.ger(X.copy(), X)
    assert len(searches) == of_stored
    del searches[:]
    with numbaprims.config(find_mode=mode, deterministic=True):
        numbaprims.ger(X, X[2:])
    with numbaprims.config(find_mode=mode, algorithm={"ger": "row_block"}):
        numbaprims.ger(X, X[3:])
    with numbaprims.config(find_mode=mode, device="reference"):
        numbaprims.ger(X, X[4:])
    assert not searches


def test_a_call_does_not_fail_because_its_problem_cannot_be_timed(user, monkeypatch):
    monkeypatch.delattr(importlib.import_module("numbaprims.ops.ger"), "EXAMPLES")
    with numbaprims.config(find_mode="normal"), pytest.warns(RuntimeWarning, match="ger is not timed: .*EXAMPLES"):
        assert (numbaprims.ger(X, X) == 1).all()
    with pytest.raises(NotImplementedError, match="EXAMPLES"):
        numbaprims.find("ger", X, X)


def test_calls_of_several_threads_wait_for_one_search(user, clock):
    _, searches = clock
    numbaprims.config.set(find_mode="hybrid", database=user)
    try:
        with ThreadPoolExecutor(4) as pool:
            for result in pool.map(lambda _: numbaprims.ger(X, X), range(8)):
                assert (result == 1).all()
    finally:
        numbaprims.config.set(find_mode="fast", database="off")
    assert len(searches) == 1


# ---------------------------------------------------------------- what calls choose afterwards


def test_calls_that_ran_before_use_what_was_found(user, clock, capfd):
    a, b, x = ones(30, 20), ones(20, 10), ones(100)
    calls = {
        "gemm": lambda: numbaprims.gemm(a, b), "gemv": lambda: numbaprims.gemv(a, b[:, 0].copy()),
        "ger": lambda: numbaprims.ger(X, X), "activation": lambda: numbaprims.tanh(x),
    }  # fmt: skip
    modules = {
        "gemm": _gemm_pose.GEMM, "gemv": gemv._gemv, "ger": ger._ger, "activation": _activation_call.FORWARD,
    }  # fmt: skip
    before = {}
    for stem, make in calls.items():
        for _ in range(4):
            before[stem] = make()
        assert len(modules[stem]._launchers) and modules[stem]._known_calls._tables, "the fast path was taken"
    times, _ = clock
    for stem, make in calls.items():
        call.forget()
        make()
        problem = {
            "gemm": ("gemm", a, b),
            "gemv": ("gemv", a, b[:, 0].copy()),
            "ger": ("ger", X, X),
            "activation": ("tanh", x),
        }
        times.update({solver.name: 1e-3 for solver in registry.solvers(stem, "cpu")}, naive=1e-9)
        numbaprims.find(*problem[stem])
        assert not len(modules[stem]._launchers) and not modules[stem]._known_calls._tables
        with numbaprims.config(verbose=1):
            make()
        assert "# naive, user database" in capfd.readouterr().err
        for _ in range(4):
            assert np.allclose(make(), before[stem], rtol=1e-6)


def test_trials_leave_the_launchers_of_others_alone():
    numbaprims.ger(X, X)
    module = importlib.import_module("numbaprims.ops.ger")._ger
    kept = list(module._launchers._bound)
    target = registry.target("cpu")
    problem = problem_of("ger", X, X)
    for solver in registry.solvers("ger", "cpu"):
        launch, result = finding.capture(problem, "cpu", examples.example_call("ger", problem), solver, {})
        launch()
        assert result.shape == (24, 24) and solver.why_not(problem, target) is None
    numbaprims.ger(X, X)
    assert list(module._launchers._bound)[: len(kept)] == kept
    assert numbaprims.explain("ger", X, X).rule == "least estimated time"


# ---------------------------------------------------------------- turns


def test_processes_take_turns_on_a_device(tmp_path):
    code = (
        "import time\nfrom numbaprims.tuning import turns\nprint('here', flush=True)\n"
        "with turns.turn('cpu'):\n    print(time.monotonic(), flush=True)\n"
    )
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    with turns.turn("cpu"), turns.turn("cpu"):  # a thread may hold it twice
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "here\n"
        time.sleep(0.5)
        released = time.monotonic()
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and float(out) >= released


def test_no_lock_is_no_hindrance(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (None, str(tmp_path / "file" / "x.lock")):
        monkeypatch.setattr(turns, "lock_file", lambda device, path=path: path)
        with turns.turn("cpu"):
            done = True
        assert done


# ---------------------------------------------------------------- the command


def test_the_command_prints_a_ranked_table(capsys, user):
    assert cli.main(["find", "gemm", "--m", "24", "--n", "20", "--k", "16", "--check"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "numbaprims bench gemm --shapes 24x20x16 --dtype f32" and out[1].startswith("solver")
    assert {line.split()[0] for line in out[2:-1]} >= {"direct", "naive"} and user.exists()
    assert cli.main(["find", "ger", "--shapes", "9x7,5x3", "--dtype", "f64", "--no-store", "--mode", "fast"]) == 0
    out = capsys.readouterr().out
    assert "ger --shapes 9x7 --dtype f64" in out and "ger --shapes 5x3" in out and "estimate" in out
    assert cli.main(["find", "activation", "--kind", "gelu", "--n", "100", "--mode", "fast"]) == 0
    assert "--kind gelu --shapes 100" in capsys.readouterr().out


def test_the_command_for_a_convolution(capsys, user):
    words = "find conv --n 1 --c 8 --hw 9 --k 4 --rs 3 --pad 1 --stride 2 --direction data --mode fast"
    assert cli.main(words.split()) == 0
    out = capsys.readouterr().out
    assert "naive" in out and "--h 9 --w 9" in out and "--r 3 --s 3" in out and "data" in out
    words = "find conv --c 4 --d 6 --hw 5 --k 4 --z 2 --rs 3 --stride 2x1x1 --groups 2 --mode fast --direction "
    for layout in ("NCHW", "NHWC"):
        assert cli.main([*words.split(), "data,weight", "--layout", layout]) == 0
        assert capsys.readouterr().out.count("naive") == 2


@pytest.mark.parametrize("words, says", [
    ("find gemm --m 3", "--n --k missing"), ("find ger --m 3 --n 4 --c 5", "--c means nothing"),
    ("find gemv --shapes nosuite", "nosuite"), ("find conv --n 1 --c 3 --hw 4", "missing"),
        ("find conv --c 4 --d 6 --hw 5 --k 4", "--z --r --s missing"),
        ("find conv --c 4 --d 6 --hw 5 --k 4 --z 7 --rs 3", "does not fit"),
    ("find gemm --shapes 2x2x2 --dtype f3", "f3"), ("find gemm --shapes 2x2x2 --workspace much", "much"),
])  # fmt: skip
def test_wrong_words_are_named(capsys, words, says):
    assert cli.main(words.split()) == 2
    assert says in capsys.readouterr().err


# ---------------------------------------------------------------- what a database costs


def test_a_lookup_takes_less_than_a_millisecond_and_a_hit_none(user):
    problem, target, times = problem_of("ger", X, X), registry.target("cpu"), []
    key, record = records.key_of(problem, target), records.Record("naive", 1, {}, 1e-6, 2, "")
    own = database.user()
    own.add((dataclasses.replace(key, problem=records.dump({"m": i})), record) for i in range(5000))
    own.store(key, [record])
    database.lookup(key)
    for _ in range(50):
        began = time.perf_counter()
        assert database.lookup(records.key_of(problem, target))
        times.append(time.perf_counter() - began)
    assert min(times) < 1e-3
    numbaprims.ger(X, X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "lookup", lambda key: pytest.fail("a repeated call looked into the database"))
        numbaprims.ger(X, X)


def test_without_a_file_sqlite_is_not_imported(tmp_path):
    code = (
        "import sys, numpy as np, numbaprims\nx = np.ones(5, np.float32)\nnumbaprims.ger(x, x)\n"
        "assert 'sqlite3' not in sys.modules and 'numbaprims.dispatch.find' not in sys.modules"
    )
    env = dict(os.environ, PYTHONPATH=str(ROOT), NUMBAPRIMS_DATABASE=str(tmp_path / "none"))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
