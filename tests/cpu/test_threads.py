"""How many threads: affinity, cgroup quotas of both versions, variables, settings."""

import math
import os
import sys
from pathlib import Path

import pytest

from numbaprims import config
from numbaprims.cpu import threads


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that lays out a machine: its cgroup files, its affinity, its variables."""
    root = tmp_path / "cgroup"

    def lay_out(membership: str, files: dict[str, str], cpus: int = 64, **variables: str) -> None:
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        monkeypatch.setattr(threads, "_PROC_CGROUP", str(tmp_path / "membership"))
        monkeypatch.setattr(threads, "_CGROUP_ROOT", str(root))
        monkeypatch.setattr(threads, "_affinity", lambda: cpus)
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        threads._limits.cache_clear()
        threads.default_threads.cache_clear()

    yield lay_out
    threads._limits.cache_clear()
    threads.default_threads.cache_clear()


V1 = "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/docker/abc\n"

QUOTAS = {
    "v2, at the root of a container": ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
    "v2, own group": ("0::/user.slice/app\n", {"user.slice/app/cpu.max": "400000 100000"}, 4),
    "v2, parent is tighter": (
        "0::/pod/container\n",
        {"pod/cpu.max": "200000 100000", "pod/container/cpu.max": "max 100000"},
        2,
    ),
    "v2, group is tighter": (
        "0::/pod/container\n",
        {"pod/cpu.max": "800000 100000", "pod/container/cpu.max": "50000 100000"},
        0.5,
    ),
    "v2, no period": ("0::/\n", {"cpu.max": "300000"}, 3),
    "v2, no quota": ("0::/\n", {"cpu.max": "max 100000"}, math.inf),
    "v2, path seen from the host": ("0::/../../kubepods/x\n", {"cpu.max": "250000 100000"}, 2.5),
    "v2, garbage": ("0::/\n", {"cpu.max": "lots of\nthem"}, math.inf),
    "v2, empty": ("0::/\n", {"cpu.max": ""}, math.inf),
    "v1, own group": (
        V1,
        {
            "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000",
            "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
        },
        2.5,
    ),
    "v1, inside a container": (V1, {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2),
    "v1, no quota": (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
    "v1, period is zero": (V1, {"cpu/cpu.cfs_quota_us": "100", "cpu/cpu.cfs_period_us": "0"}, math.inf),
    "v1, cpuset is not cpu": (
        "3:cpuset:/x\n",
        {"cpuset/x/cpu.cfs_quota_us": "100000", "cpuset/x/cpu.cfs_period_us": "100000"},
        math.inf,
    ),
    "both, v1 holds the CPU": (
        V1 + "0::/\n",
        {"cpu/docker/abc/cpu.cfs_quota_us": "300000", "cpu/docker/abc/cpu.cfs_period_us": "100000"},
        3,
    ),
    "no cgroups": ("", {}, math.inf),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_cgroup_quota(machine, case):
    membership, files, expected = QUOTAS[case]
    machine(membership, files)
    assert threads.cgroup_quota() == expected
    assert threads.default_threads() == (64 if expected == math.inf else max(1, math.ceil(expected)))


def test_no_proc_file_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "_PROC_CGROUP", str(tmp_path / "missing"))
    assert threads.cgroup_quota() == math.inf


@pytest.mark.parametrize(
    ("variables", "expected", "why"),
    [
        ({}, 6, "cgroup quota"),
        ({"OMP_NUM_THREADS": "4"}, 4, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4,2"}, 4, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "100"}, 6, "cgroup quota"),
        ({"OMP_NUM_THREADS": "0"}, 6, "cgroup quota"),
        ({"OMP_NUM_THREADS": "many"}, 6, "cgroup quota"),
        ({"OMP_NUM_THREADS": ""}, 6, "cgroup quota"),
        ({"NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "4"}, 2, "NUMBA_NUM_THREADS"),
    ],
)
def test_least_limit_decides(machine, variables, expected, why):
    machine("0::/\n", {"cpu.max": "550000 100000"}, **variables)
    assert threads.default_threads() == expected
    assert threads.why_default() == f"{expected} by {why}"


def test_affinity_decides(machine):
    machine("0::/\n", {"cpu.max": "550000 100000"}, cpus=3)
    assert threads.default_threads() == 3 and threads.why_default() == "3 by affinity"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_is_the_systems():
    assert threads._affinity() == len(os.sched_getaffinity(0))


def test_settings_may_exceed_the_default_but_not_numbas_threads():
    import numba

    most = numba.config.NUMBA_NUM_THREADS
    with config(threads=1):
        assert threads.count() == 1
    with config(threads=most):
        assert threads.count() == most
    with config(threads=most + 5):
        assert threads.count() == most
    assert threads.count() == min(threads.default_threads(), most)


def test_initialise_again_changes_nothing():
    threads.initialise()
    first = threads.layer()
    threads.initialise()
    assert threads.layer() == first and first[0] in threads.PREFERENCE and len(first[1]) > 10
    assert threads.parallel_allowed()
    with threads.region_lock(), threads.region_lock():
        pass


def test_only_this_module_starts_threads():
    package = Path(threads.__file__).parents[1]
    words = ("threading_layer(", "THREADING_LAYER", "register_at_fork", "_launch_threads")
    # kernel_cache holds Numba's semi-private names, forks gives locks up in a child
    allowed = {"cpu/threads.py", "forks.py", "kernel_cache.py"}
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found <= allowed and "cpu/threads.py" in found
    assert sys.modules[threads.__name__] is threads


def test_one_of_several_workers(machine):
    machine("0::/\n", {"cpu.max": "1200000 100000"})
    try:
        threads.share(4)
        assert threads.default_threads() == 3 and threads.why_default() == "3 by being one of 4 workers"
        threads.share(100)
        assert threads.default_threads() == 1
        threads.share(1)
        assert threads.default_threads() == 12
        machine("0::/\n", {}, OMP_NUM_THREADS="2")
        threads.share(4)
        assert threads.default_threads() == 2, "a variable is about one process already"
    finally:
        threads.share(1)


def test_launches_at_one_time_share_the_cpus(machine, monkeypatch):
    machine("0::/\n", {}, cpus=8)
    who = iter("abababcaa")
    monkeypatch.setattr(threads.threading, "get_ident", lambda: next(who))
    monkeypatch.setattr(threads, "_running", {})
    monkeypatch.setattr(threads, "_layer_name", "omp")
    assert threads.enter(8) == 8  # a, alone
    assert threads.enter(8) == 1  # b: a has all of them
    threads.leave()  # a
    threads.leave()  # b
    assert threads.enter(8) == 8  # a
    assert threads.enter(8) == 1  # b
    with config(threads=8):
        assert threads.enter(8) == 8  # c: what is asked for is given
    threads.leave()  # a
    monkeypatch.setattr(threads, "_layer_name", "workqueue")
    assert threads.enter(8) == 8  # a: launches take turns there
    for name in ("_serial_only", "_init_lock", "_region"):  # what the hook changes, for the tests that follow
        monkeypatch.setattr(threads, name, getattr(threads, name))
    threads._after_fork_in_child()
    assert threads._running == {}, "the other threads do not exist in a child"
