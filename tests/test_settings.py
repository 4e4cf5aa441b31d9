"""Settings: the environment, the process default, the override of a context."""

import asyncio
import contextvars
import copy
import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import numbaprims
from numbaprims import settings
from numbaprims.settings import config, current, key

ROOT = Path(settings.__file__).parents[1]


@pytest.fixture(autouse=True)
def untouched():
    old = settings._default
    yield
    settings._default = old


@pytest.fixture
def environment(monkeypatch):
    """A function that sets variables and reads the settings again."""
    for name in [name for name in os.environ if name.startswith("NUMBAPRIMS_")]:
        monkeypatch.delenv(name)

    def read(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"NUMBAPRIMS_{name}", value)
        settings.reload()
        return current()

    return read


GOOD = [
    ("THREADS", "3", "threads", 3),
    ("THREADS", "auto", "threads", None),
    ("DETERMINISTIC", "1", "deterministic", True),
    ("DETERMINISTIC", "off", "deterministic", False),
    ("ALGORITHM", "gemm:blocked", "algorithm", (("gemm", "blocked"),)),
    (
        "ALGORITHM",
        " gemv:row_block , conv:winograd_4x4,",
        "algorithm",
        (("conv", "winograd_4x4"), ("gemv", "row_block")),
    ),
    ("DEVICE", "cuda:1", "device", "cuda:1"),
    ("DEVICE", "AUTO", "device", None),
    ("DEVICE", "reference", "device", "reference"),
    ("ALLOW_TF32", "yes", "allow_tf32", True),
    ("ACCURACY", "high", "accuracy", "high"),
    ("VERBOSE", "2", "verbose", 2),
    ("VERBOSE", "True", "verbose", 1),
    ("FIND_MODE", "normal", "find_mode", "normal"),
    ("FIND_MODE", "trust_verify", "find_mode", "trust_verify"),
    ("DATABASE", "/a/tuning.sqlite", "database", "/a/tuning.sqlite"),
    ("DATABASE", "off", "database", ""),
    ("SOLVER_WORKSPACE", "64M", "solver_workspace", 64 << 20),
    ("SOLVER_WORKSPACE", "0", "solver_workspace", 0),
    ("SOLVER_WORKSPACE", "unlimited", "solver_workspace", None),
    ("CACHE", "0", "cache", False),
    ("CACHE_DIR", "/a/b", "cache_dir", "/a/b"),
    ("CACHE_LIMIT", "3M", "cache_limit", 3 << 20),
    ("CACHE_LIMIT", "2 GiB", "cache_limit", 2 << 30),
    ("SHIPPED_CACHE", "/c", "shipped_cache", "/c"),
    ("WORKSPACE", "4096", "workspace_limit", 4096),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), GOOD)
def test_environment(environment, name, text, field, value):
    defaults = environment()
    found = environment(**{name: text})
    assert getattr(found, field) == value
    assert {**found.as_dict(), field: None} == {**defaults.as_dict(), field: None}, "something else changed"
    assert environment(**{name: "  "}).as_dict() == defaults.as_dict(), "blank means not set"


BAD = [
    ("THREADS", "0"),
    ("THREADS", "two"),
    ("THREADS", "-1"),
    ("THREADS", "1.5"),
    ("DETERMINISTIC", "maybe"),
    ("ALGORITHM", "winograd_4x4"),
    ("ALGORITHM", "conv:a:b"),
    ("ALGORITHM", "conv:a,conv:b"),
    ("ALGORITHM", "conv: a b"),
    ("DEVICE", "gpu"),
    ("DEVICE", "cuda:x"),
    ("ACCURACY", "perfect"),
    ("VERBOSE", "3"),
    ("VERBOSE", "maybe"),
    ("FIND_MODE", "slow"),
    ("CACHE", "2"),
    ("CACHE_LIMIT", "lots"),
    ("CACHE_LIMIT", "-1"),
    ("WORKSPACE", "1X"),
    ("SOLVER_WORKSPACE", "some"),
]


@pytest.mark.parametrize(("name", "text"), BAD)
def test_bad_environment_costs_one_warning(environment, name, text):
    defaults = environment()
    with pytest.warns(RuntimeWarning) as caught:
        found = environment(**{name: text})
    assert len(caught) == 1
    message = str(caught[0].message)
    assert f"NUMBAPRIMS_{name}" in message and repr(text) in message and "instead" in message
    assert found.as_dict() == defaults.as_dict()


def test_every_variable_is_in_the_table():
    documented = re.findall(r"^NUMBAPRIMS_\w+", settings.__doc__, re.M)
    used = [variable for _, _, variable in settings._FIELDS.values() if variable]
    assert sorted(documented) == sorted(used)
    assert set(settings.Settings.__slots__) == {*settings._FIELDS, "key", "calls"}


def test_with_block_overrides_and_nests():
    before = current()
    with config(threads=3, verbose=True) as outer:
        assert current() is outer and (outer.threads, outer.verbose) == (3, 1)
        with config(threads="auto", accuracy="high") as inner:
            assert (inner.threads, inner.verbose, inner.accuracy) == (None, 1, "high")
        assert current() is outer
        with pytest.raises(ZeroDivisionError):
            with config(threads=1):
                raise ZeroDivisionError
        assert current() is outer
    assert current() is before


def test_one_config_may_be_entered_again():
    once = config(threads=2)
    with once, once:
        assert current().threads == 2
    assert current().threads != 2
    with once:
        assert current().threads == 2


def test_contexts_may_share_a_config():
    once, both, wrong = config(threads=2), threading.Barrier(2), []

    async def task(turns):
        with once:
            for _ in range(turns):
                await asyncio.sleep(0)
            wrong.append(current().threads != 2)
        wrong.append(current().threads == 2)

    async def tasks():
        await asyncio.gather(task(1), task(2))

    def thread():
        with once:
            both.wait()
            wrong.append(current().threads != 2)
        wrong.append(current().threads == 2)

    asyncio.run(tasks())
    with ThreadPoolExecutor(2) as pool:
        assert [each.result() for each in [pool.submit(thread) for _ in range(2)]] == [None, None]
    assert len(wrong) == 8 and not any(wrong)


def test_algorithm_of_a_function_is_refused():
    """It would be looked up by nobody, and the chosen solver would run as if it were forced."""
    with (
        pytest.raises(ValueError, match="solvers by stem; 'cast' is a function of 'tensor'"),
        config(algorithm="cast:rows"),
    ):
        pass


def test_algorithm_is_per_stem():
    with config(algorithm={"conv": "winograd_4x4", "gemm": "blocked"}):
        assert current().algorithm_for("conv") == "winograd_4x4"
        assert current().algorithm_for("gemv") is None
        with config(algorithm=""):
            assert current().algorithm == ()
        with config(algorithm="gemm:naive"):
            assert current().algorithm == (("gemm", "naive"),)
    with config(algorithm="gemm:blocked,conv:winograd_4x4"):
        first = key()
    with config(algorithm={"conv": "winograd_4x4", "gemm": "blocked"}):
        assert key() == first


WRONG = [
    ({"threads": 0}, ValueError, "threads=0"),
    ({"threads": True}, TypeError, "threads=True"),
    ({"threads": 2.0}, TypeError, "threads=2.0"),
    ({"deterministic": "perhaps"}, ValueError, "True or False"),
    ({"deterministic": 2.5}, TypeError, "True or False"),
    ({"algorithm": "winograd_4x4"}, ValueError, "stem:solver"),
    ({"algorithm": 3}, TypeError, "stem:solver"),
    ({"algorithm": {"conv": 3}}, ValueError, "stem:solver"),
    ({"device": "gpu"}, ValueError, "'cuda:N'"),
    ({"device": 0}, TypeError, "'cuda:N'"),
    ({"stream": "fast"}, TypeError, "stream"),
    ({"allow_tf32": "x"}, ValueError, "allow_tf32='x'"),
    ({"accuracy": "best"}, ValueError, "'standard'"),
    ({"verbose": 7}, ValueError, "verbose=7"),
    ({"find_mode": 1}, TypeError, "'fast'"),
]


@pytest.mark.parametrize(("given", "error", "says"), WRONG)
def test_bad_arguments_name_themselves(given, error, says):
    before = current()
    [(name, value)] = given.items()
    for call in (config, config.set):
        with pytest.raises(error, match=re.escape(says)) as caught:
            call(**given)
        assert f"{name}={value!r}" in str(caught.value) and "allowed is" in str(caught.value)
    assert current() is before


def test_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="treads"):
        config(treads=1)
    with pytest.raises(TypeError, match="treads.*threads"):
        config.set(treads=1)


def test_nothing_changes_if_one_argument_is_bad():
    before = current()
    with pytest.raises(ValueError):
        config.set(threads=3, accuracy="best")
    assert current() is before


def test_process_default_reaches_other_threads_and_the_override_does_not():
    def seen():
        return current().threads

    config.set(threads=7)
    with ThreadPoolExecutor(1) as pool, config(threads=2):
        assert seen() == 2
        assert pool.submit(seen).result() == 7
        assert pool.submit(contextvars.copy_context().run, seen).result() == 2


def test_default_that_changes_inside_a_block_shows_through():
    with config(threads=2):
        config.set(accuracy="high", threads=5)
        assert (current().threads, current().accuracy) == (2, "high")
    assert (current().threads, current().accuracy) == (5, "high")


def test_key_holds_what_changes_choice_or_result():
    plain = key()
    for changes in (
        {"accuracy": "high"},
        {"allow_tf32": True},
        {"deterministic": True},
        {"algorithm": "gemm:naive"},
        {"device": "reference"},
        {"find_mode": "normal"},
        {"database": "/a/tuning.sqlite"},
        {"solver_workspace": 0},
        {"threads": 1},
    ):
        with config(**changes):
            assert key() != plain and key() == current().key
        config.set(**changes)
        assert key() != plain
        settings.reload()
        assert key() == plain
    with config(threads=5, verbose=1, stream=12):
        assert key() == plain


def test_each_trial_has_a_key_of_its_own():
    plain, what = key(), object()
    with settings.trial(what):
        first = key()
        assert current().trial is what and first != plain and key() == first
        with settings.trial(what):
            assert key() not in (plain, first)
    assert key() == plain and current().trial is None


def test_keys_stay_apart_when_threads_meet_new_settings():
    start = threading.Barrier(8)
    found = {}

    def meet(n):
        start.wait()
        for i in range(200):
            with config(algorithm=f"gemm:s{i}_{n % 2}"):
                found.setdefault((i, n % 2), set()).add(key())

    workers = [threading.Thread(target=meet, args=(n,)) for n in range(8)]
    [w.start() for w in workers], [w.join() for w in workers]
    assert all(len(keys) == 1 for keys in found.values())
    assert len({next(iter(keys)) for keys in found.values()}) == 400


def test_records_are_immutable():
    with pytest.raises(AttributeError, match="config"):
        current().threads = 1
    with pytest.raises(AttributeError):
        del current().threads
    assert "threads=" in repr(current())


def test_records_are_copied_and_pickled():
    with config(threads=3, algorithm="gemm:blocked", stream=5):
        state = current()
    assert copy.copy(state) is copy.deepcopy(state) is state
    again = pickle.loads(pickle.dumps(state))
    assert again.as_dict() == {**state.as_dict(), "stream": None} and again.key == state.key
    with settings.trial(threading.Lock()):
        assert pickle.loads(pickle.dumps(current())).trial is None


def test_importing_settings_loads_nothing_heavy():
    code = """
import sys
before = set(sys.modules)
import numbaprims.settings
print(*sorted(set(sys.modules) - before))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Without site, which may load typing and others before us.
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = {"__future__", "_contextvars", "itertools", "numbaprims", "numbaprims.settings", "numbaprims.stems"}
    at_every_start = {
        "os",
        "os.path",
        "posixpath",
        "ntpath",
        "genericpath",
        "stat",
        "_stat",
        "_collections_abc",
    }
    assert set(done.stdout.split()) <= ours | at_every_start


def test_config_is_public():
    assert numbaprims.config is config
