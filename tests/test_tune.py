"""`tune`: budgets, stopping and going on, executors, the command."""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import numbaprims
from numbaprims import cli
from numbaprims.dispatch import call, peaks, registry, tune as tuning
from numbaprims.dispatch.explain import problem_of
from numbaprims.dispatch.find import Finding
from numbaprims.tuning import database, records, trouble
from numbaprims.tuning.search import BATCH, FINALISTS

pytestmark = pytest.mark.cpu
ROOT = Path(numbaprims.__file__).resolve().parent.parent
X = np.ones(24, np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(trouble, "_said", set())
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


def ger(n=24, dtype=np.float32):
    return problem_of("ger", np.ones(n, dtype), np.ones(n, dtype))


def key(problem):
    return records.key_of(problem, registry.target("cpu"))


# ---------------------------------------------------------------- tune, with times that are made up


@pytest.fixture
def solvers(monkeypatch):
    """ger with two solvers of many configs, and times by config; the batches that were timed."""
    from numbaprims.cpu.ger import SOLVERS

    batches, naive = [], SOLVERS[-1]

    class Wide(type(naive)):
        name = "wide"

        def estimate(self, problem, target):
            return 1e-6

        def configs(self, problem, target):
            return [{"way": way} for way in range(12)]

    times = {"wide": lambda config: 1e-6 * (6 + abs(config["way"] - 8)), "naive": lambda config: 8e-6}

    def time_items(problem, device, items, *, check=False, schedule=None):
        batches.append([(solver.name, dict(config)) for solver, config, _ in items])
        return [Finding(s.name, config, times[s.name](config), 0) for s, config, _ in items]

    real = registry.solvers
    pair = (Wide(), naive)
    monkeypatch.setattr(registry, "solvers", lambda stem, device: pair if stem == "ger" else real(stem, device))
    monkeypatch.setattr(tuning._find, "time_items", time_items)
    monkeypatch.setattr(peaks, "least_seconds", lambda problem, device: 1e-7)
    return times, batches


def test_the_best_config_is_stored_and_used(user, solvers):
    _, batches = solvers
    [outcome] = done = numbaprims.tune(ger(), progress=False)
    assert (outcome.solver, outcome.config, outcome.seconds) == ("wide", {"way": 8}, 6e-6)
    assert outcome.before == 14e-6 and outcome.speedup == pytest.approx(14 / 6) and outcome.complete
    assert outcome.timed == 13 + FINALISTS == sum(map(len, batches))
    assert "wide (way=8) 6 us, 2.33 x the estimate's choice" in str(done)
    table = numbaprims.explain("ger", X, X)
    assert (table.chosen.solver, table.chosen.config, table.rule) == ("wide", {"way": 8}, "user database")
    stored = {r.solver: r for r in database.user().lookup(key(ger()))[0][1]}
    assert {name: r.seconds for name, r in stored.items()} == {"wide": 6e-6, "naive": 8e-6}
    assert stored["wide"].threads == tuning._find.threads_now() and "numba" in stored["wide"].toolchain
    assert (numbaprims.ger(X, X) == 1).all()


def test_a_second_run_times_nothing_and_again_times_all(user, solvers):
    _, batches = solvers
    first = numbaprims.tune([ger(), ger(30)], progress=False)
    del batches[:]
    second = numbaprims.tune([ger(), ger(30)], progress=False)
    assert not batches and [o.seconds for o in second] == [o.seconds for o in first]
    assert [o.timed for o in second] == [0, 0] and all(o.complete for o in second)
    numbaprims.tune(ger(), progress=False, again=True)
    assert sum(map(len, batches)) == 13 + FINALISTS


def test_another_version_or_thread_count_is_timed_anew(user, solvers, monkeypatch):
    _, batches = solvers
    numbaprims.tune(ger(), progress=False)
    del batches[:]
    with numbaprims.config(threads=3):
        numbaprims.tune(ger(), progress=False)
    assert sum(map(len, batches)) == 13 + FINALISTS
    del batches[:]
    monkeypatch.setattr(type(registry.solvers("ger", "cpu")[0]), "version", 2)
    numbaprims.tune(ger(), progress=False)
    assert [name for batch in batches[:-1] for name, _ in batch] == ["wide"] * 12


def test_a_run_that_was_stopped_goes_on(user, solvers, monkeypatch):
    times, batches = solvers
    real, count = tuning._find.time_items, 0

    def interrupted(*args, **kwargs):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(tuning._find, "time_items", interrupted)
    with pytest.raises(KeyboardInterrupt):
        numbaprims.tune([ger(), ger(30)], progress=False)
    done = [item for batch in batches for item in batch]
    assert len(done) == 2 + BATCH
    assert numbaprims.explain("ger", X, X)["wide"].config == {"way": BATCH}, "the best so far counts already"
    del batches[:]
    first, second = numbaprims.tune([ger(), ger(30)], progress=False)
    assert len(batches) == 3 + 5
    assert not [item for item in batches[0] + batches[1] if item in done], "nothing is timed twice but the finalists"
    assert first.config == second.config == {"way": 8} and first.complete and second.complete


def test_the_budget_ends_it(user, solvers, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(tuning, "monotonic", lambda: now[0])
    real = tuning._find.time_items

    def slowly(*args, **kwargs):
        now[0] += 1.0
        return real(*args, **kwargs)

    monkeypatch.setattr(tuning._find, "time_items", slowly)
    first, second = numbaprims.tune([ger(), ger(30)], budget=4.0, progress=False)
    assert now[0] == 4.0 and not first.complete and not second.complete
    assert first.timed == second.timed == 2 + BATCH, "both problems got their share"
    assert [o for o in numbaprims.tune([ger(40)], budget=0.0, progress=False)] == []


def test_what_was_not_begun_is_noted_and_not_stored(user, solvers, monkeypatch):
    _, batches = solvers
    real = tuning._find.time_items

    def some(*args, **kwargs):
        return [
            dataclasses.replace(f, note="not begun: it would take some 9 s", seconds=9.0)
            if f.algorithm == "naive"
            else f
            for f in real(*args, **kwargs)
        ]

    monkeypatch.setattr(tuning._find, "time_items", some)
    numbaprims.tune(ger(), progress=False)
    assert [r.solver for r in database.user().lookup(key(ger()))[0][1]] == ["wide"]
    del batches[:]
    numbaprims.tune(ger(), progress=False)
    assert not batches


def test_a_wrong_config_is_never_stored(user, monkeypatch):
    """The quickest of four configs computes nonsense: what is stored is the best of the others."""
    naive = registry.solvers("ger", "cpu")[-1]

    class Wide(type(naive)):
        name = "wide"

        def estimate(self, problem, target):
            return 1e-6

        def configs(self, problem, target):
            return [{"way": way} for way in range(4)]

        def bind(self, problem, target, config):
            launch = naive.bind(problem, target, {})

            def run(out, *given, **floats):
                if config["way"] in (1, 2):
                    out[...] = np.nan
                    return
                time.sleep(2e-4 if config["way"] else 4e-4)
                launch(out, *given, **floats)

            return run

    monkeypatch.setattr(registry, "solvers", lambda stem, device: (Wide(),))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"ger:wide \{'way': [12]\} is wrong") as said:
            [outcome] = numbaprims.tune(ger(), progress=False, again=True)
        assert len(said) == 2 and outcome.config == {"way": 3}
        [record] = database.user().lookup(key(ger()))[0][1]
        assert record.config == {"way": 3}
    assert numbaprims.explain("ger", X, X).chosen.config == {"way": 3}
    [outcome] = numbaprims.tune(ger(), progress=False)
    assert outcome.timed == 0 and outcome.config == {"way": 3}, "wrong configs are noted as such"


def test_times_of_releases_that_did_not_check_are_taken_anew(user, solvers):
    _, batches = solvers
    numbaprims.tune(ger(), progress=False)
    database.user().close()
    with sqlite3.connect(user) as connection:
        connection.execute("ALTER TABLE tried RENAME TO trials")
    connection.close()
    del batches[:]
    [outcome] = numbaprims.tune(ger(), progress=False)
    assert sum(map(len, batches)) == 13 + FINALISTS and outcome.complete


def test_without_a_database_the_outcome_is_all_there_is(solvers):
    with numbaprims.config(database="off"):
        [outcome] = numbaprims.tune(ger(), progress=False)
        assert outcome.config == {"way": 8} and numbaprims.explain("ger", X, X).chosen.config == {"way": 0}


def test_the_bar_shows_the_best_and_its_share_of_the_peak(user, solvers, monkeypatch, capsys):
    import tqdm.auto

    bars = []

    class Bar:
        def __init__(self, **words):
            self.words, self.shown, self.updates, self.closed = words, [], 0, False
            bars.append(self)

        def set_postfix_str(self, text):
            self.shown.append(text)

        def update(self):
            self.updates += 1

        def close(self):
            self.closed = True

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    numbaprims.tune([ger(), ger(30)])
    [bar] = bars
    assert bar.words == {"total": 2, "unit": "problem", "disable": None}, "None: a bar on terminals only"
    assert bar.updates == 2 and bar.closed
    # 24 x 24 products in 6 us are 0.096 GFLOP/s; the peak was said to take 0.1 us
    assert "ger: 13 of 13 configs, wide 0.096 GFLOP/s, 2 % of peak" in bar.shown
    assert bar.shown[0] == "ger: 2 of 13 configs, naive 0.072 GFLOP/s, 1 % of peak"
    numbaprims.tune(ger(50), progress=False)
    assert bars[1].words["disable"] is True


# ---------------------------------------------------------------- on executors, with real times


def problems():
    a = np.ones((40, 30), np.float32)
    return [ger(), ger(33, np.float64), problem_of("gemv", a, a[0]), problem_of("gemm", a, a.T)]


def check(done, user):
    assert [o.problem.key() for o in done] == [p.key() for p in problems()]
    for o in done:
        assert 1e-8 < o.seconds < 1 and o.timed >= 2 and o.complete
        stored = database.user().lookup(key(o.problem))[0][1]
        assert min(stored, key=lambda r: r.seconds).solver == o.solver
        assert all(r.threads >= 1 for r in stored)


def test_in_this_process(user):
    check(numbaprims.tune(problems(), progress=False), user)
    assert numbaprims.explain("ger", X, X).rule == "user database"


def test_on_threads_takes_turns(user, monkeypatch):
    real, active, most = tuning._find.capture, [0], [0]

    def counted(*args):
        active[0] += 1
        most[0] = max(most[0], active[0])
        try:
            return real(*args)
        finally:
            active[0] -= 1

    monkeypatch.setattr(tuning._find, "capture", counted)
    numbaprims.config.set(database=user)  # a ContextVar does not reach the threads of a pool
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            check(numbaprims.tune(problems(), executor=pool, progress=False), user)
    finally:
        numbaprims.config.set(database="off")
    assert most[0] == 1


def test_on_a_pool_of_processes(user):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        check(numbaprims.tune(problems(), executor=pool, progress=False), user)


def test_on_a_dask_cluster(user, cluster):
    check(numbaprims.tune(problems(), executor=cluster.get_executor(), progress=False), user)


def test_a_job_that_fails_ends_the_run_and_keeps_the_rest(user, solvers, monkeypatch):
    real = tuning.run_job

    def fails(job):
        if job["problem"]["m"] == 30 and job["do"] == "time":
            raise RuntimeError("the worker died")
        return real(job)

    monkeypatch.setattr(tuning, "run_job", fails)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="the worker died"):
        numbaprims.tune([ger(30), ger()], executor=pool, progress=False)
    assert numbaprims.explain("ger", X, X).chosen.config == {"way": 8}, "the other problem came to its end"
    with pytest.raises(RuntimeError, match="the worker died"):
        numbaprims.tune([ger(30), ger(31)], progress=False)
    assert numbaprims.explain("ger", np.ones(31, np.float32), np.ones(31, np.float32)).chosen.config == {"way": 8}


def test_jobs_are_plain_json(user):
    run = tuning._Run(ger(), "cpu", None, "order", False)
    jobs = run.jobs()
    first = next(jobs)
    result = tuning.run_job(json.loads(json.dumps(first)))
    run.take(json.loads(json.dumps(result)))
    second = next(jobs)
    assert json.loads(json.dumps(second)) == second and second["do"] == "time"
    timed = tuning.run_job(second)
    assert len(timed["seconds"]) == len(second["items"]) and json.dumps(timed)
    assert {"fingerprint", "family", "threads", "toolchain"} <= set(timed)


def test_the_peak_is_the_slower_of_two_roofs(monkeypatch):
    for problem in problems():
        assert 1e-12 < peaks.least_seconds(problem, "cpu") < 1e-1
    monkeypatch.setattr(peaks, "_operations", {"f32": 1e11, "f64": 5e10}.get)
    monkeypatch.setattr(peaks, "_bytes", lambda size: 1e10)
    large = problem_of("gemm", np.ones((512, 512), np.float32), np.ones((512, 512), np.float32))
    assert peaks.least_seconds(large, "cpu") == pytest.approx(2 * 512**3 / 1e11)
    double = problem_of("gemm", np.ones((512, 512)), np.ones((512, 512)))
    assert peaks.least_seconds(double, "cpu") == pytest.approx(2 * 512**3 / 5e10)
    long = problem_of("relu", np.ones(1 << 20, np.float32))
    assert peaks.least_seconds(long, "cpu") == pytest.approx(8 * 2**20 / 1e10)


# ---------------------------------------------------------------- the command


def test_the_command_tunes_exports_and_imports(user, tmp_path, capsys):
    file, other = tmp_path / "times.jsonl", tmp_path / "other.sqlite"
    assert cli.main(["tune", "ger", "--shapes", "9x7,5x3", "--export", str(file)]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("x the estimate's choice") == 2 and "2 problems" in shown.err
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {(line["problem"]["m"], line["problem"]["n"]) for line in lines} == {(9, 7), (5, 3)}
    with numbaprims.config(database=other):
        assert cli.main(["tune", "--import", str(file)]) == 0
        assert f"{len(lines)} records of {file} added to {other}" in capsys.readouterr().out
        assert len(list(database.user().everything())) == len(lines)
        database.user().close()


@pytest.mark.parametrize("words, says", [
    ("tune", "name a stem"), ("tune --suite nosuite", "nosuite"), ("tune --import /no/such/file", "/no/such/file"),
    ("tune gemm --m 3", "missing"), ("tune ger --m 3 --n 4 --sampler optuna --export /no/such/dir/x", "/no/such/dir"),
])  # fmt: skip
def test_wrong_words_are_named(capsys, user, words, says):
    assert cli.main(words.split()) == 2
    assert says in capsys.readouterr().err


def test_suites_by_name(user, monkeypatch):
    asked = []
    monkeypatch.setattr(numbaprims, "tune", lambda problems, **words: asked.append((problems, words)) or "")
    assert cli.main(["tune", "--suite", "gemm:quick", "--budget", "7"]) == 0
    assert cli.main(["tune", "ger", "--suite", "quick"]) == 0
    [(gemms, words), (gers, _)] = asked
    assert words["budget"] == 7.0 and {p.stem for p in gemms} == {"gemm"} and {p.stem for p in gers} == {"ger"}
    assert len(gers) == 3


def test_a_network_names_its_layers(user, monkeypatch):
    asked = []
    monkeypatch.setattr(numbaprims, "tune", lambda problems, **words: asked.append(problems) or "")
    assert cli.main(["tune", "--suite", "resnet50"]) == 0
    assert len(asked[0]) > 50 and {p.stem for p in asked[0]} == {"conv", "batch_norm", "pooling"}
    assert (3, 224) in {(p.c, p.x_size[-1]) for p in asked[0] if p.stem == "conv"}


# The command, which in the middle of its work says so and waits: no clock decides where the signal meets it.
HELD = """
import signal, sys, time
# a shell that starts its jobs in the background has them ignore the signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from numbaprims import cli
from numbaprims.dispatch import tune
real, done = tune.run_job, []
def run_job(job):
    if len(done) == 3:
        print("held", flush=True)
        time.sleep(600)
    done.append(job)
    return real(job)
tune.run_job = run_job
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C of another process")
def test_control_c_stops_the_command_and_the_next_goes_on(tmp_path):
    path = tmp_path / "tuning.sqlite"
    env = dict(os.environ, PYTHONPATH=str(ROOT), NUMBAPRIMS_DATABASE=str(path))
    words = ["tune", "ger", "--shapes", "300x500,310x490,320x480"]
    running = subprocess.Popen(
        [sys.executable, "-c", HELD, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "held\n"
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=120)
    assert running.returncode == 130 and "the same command goes on from here" in error, error
    assert "Traceback" not in error
    before = dict(sqlite_rows(path))
    assert 0 < len(before) < 3, "what was timed is there"
    again = [sys.executable, "-m", "numbaprims", *words]
    done = subprocess.run(again, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("x the estimate's choice") == 3, done.stderr
    after = dict(sqlite_rows(path))
    assert len(after) == 3 and all(after[problem] >= count for problem, count in before.items())


def sqlite_rows(path):
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT problem, count(*) FROM tried GROUP BY problem").fetchall()
    connection.close()
    return rows


@pytest.mark.parametrize("words", [{"sampler": "zz"}, {"budget": -1}, {"budget": "3"}, {"device": "gpu"}])
def test_words_are_looked_at_before_problems(words):
    [(name, value)] = words.items()
    with pytest.raises(ValueError, match=f"^{name} is {value!r}; it must be"):
        numbaprims.tune([], **words)


def test_what_is_no_executor_is_refused_in_words():
    with pytest.raises(TypeError, match=r"^executor is a int; it must be a concurrent\.futures\.Executor, or None"):
        numbaprims.tune([ger()], executor=5)


@pytest.mark.parametrize("given", ["gemm", ["gemm"], 3, [np.ones(3)]])
def test_what_is_no_problem_is_refused_in_words(given):
    with pytest.raises(TypeError, match=r"^problems: .* given; tune takes what numbaprims\.explain"):
        numbaprims.tune(given)
