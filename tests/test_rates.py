"""The rates of a core: profiles of families, what `numbaprims calibrate` measures and keeps, and who reads it."""

import ast
import dataclasses
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from database_user import anew
from helpers import EMULATED

import numbaprims
from numbaprims.bench import rates as rates_of
from numbaprims.bench.roofline import Probe
from numbaprims.cli import main
from numbaprims.cpu import target
from numbaprims.cpu.rates import FAMILIES, PROFILES, CpuRates, profile
from numbaprims.dispatch import registry
from numbaprims.ops._rnn_problem import RnnProblem
from numbaprims.tuning import machine

pytestmark = pytest.mark.cpu
PACKAGE = Path(numbaprims.__file__).resolve().parent
X = np.ones((64, 64), np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    with anew(monkeypatch):
        yield
        registry.calibrated()


@pytest.fixture
def mine(tmp_path):
    """The file of this CPU's rates, beside a user database in force."""
    with numbaprims.config(database=tmp_path / "of user" / "tuning.sqlite"):
        yield Path(machine.path_of(target.current().fingerprint))


def kept(path, **changes):
    """Store twice the clock of the profile; give the rates."""
    cpu = target.current()
    rates = cpu.rates._replace(clock=2 * cpu.rates.clock, source="calibrated 2026-01-01", **changes)
    assert machine.store(str(path), cpu.fingerprint, rates._asdict())
    registry.calibrated()
    return rates


def test_no_solver_file_holds_a_bandwidth_a_clock_or_a_time():
    found = []
    for part in ("gemm", "gemv", "ger", "conv", "activation", "reduce", "windows", "rnn"):
        for path in sorted((PACKAGE / "cpu" / part).rglob("*.py")):
            name = path.relative_to(PACKAGE / "cpu").as_posix()
            for node in ast.walk(ast.parse(path.read_text())):
                value = node.value if isinstance(node, ast.Constant) else None
                if isinstance(value, float) and (1e30 > value >= 1e8 or 0 < value < 1e-3):
                    found.append(f"{name}:{node.lineno}: {value}")
    assert not found, "CpuTarget.rates is the place of " + ", ".join(found)


@pytest.mark.parametrize("name", [*PROFILES, *FAMILIES])
def test_profiles_are_like_cores(name):
    rates = profile(name, "avx512", 64, 32 << 20)
    assert 2e9 < rates.clock < 6e9 and 1 <= rates.fma <= 4
    assert rates.l1 > rates.l2 > rates.l3 > rates.memory > 1e9
    assert rates.phase < rates.call < rates.wake < 1e-4
    assert FAMILIES.get(name, name) in rates.source


def test_one_thread_counts_on_a_core_s_share_several_on_theirs():
    x = np.empty(1 << 21, np.float32)
    problem = numbaprims.explain("binary", x, x.copy(), "add", out=x.copy()).problem
    solver = next(each for each in registry.solvers("tensor", "cpu") if each.name == "split")
    both = ("stream", "stream")
    for name, wanted in zip(
        ("znver3", "znver4", "znver5", "sapphirerapids", "graniterapids"),
        (both, ("stream", "plain"), ("plain", "plain"), both, both),
        strict=True,
    ):
        where = dataclasses.replace(target.current(), name=name, l3=32 << 20, cores_logical=2, measured=None)
        for threads, stores in zip((1, 2), wanted, strict=True):
            with numbaprims.config(threads=threads):
                assert next(iter(solver.configs(problem, where)))["stores"] == stores, (name, threads)
        assert where.rates.waits == (name in ("sapphirerapids", "graniterapids"))
        one = dataclasses.replace(where, cores_logical=1)
        assert (one.kept < where.kept) == (name in ("znver4", "sapphirerapids", "graniterapids"))
        with numbaprims.config(threads=1):
            assert where.kept <= where.third == one.third, "nothing else depends on the number of threads"


def test_of_a_third_level_that_others_use_a_core_counts_on_its_share():
    """What no longer fits into it is charged at memory's rate."""
    alone = dataclasses.replace(target.current(), name="znver3", l2=512 << 10, l3=32 << 20)
    rates = profile("znver3", "avx2", 32, 32 << 20)._replace(share=1.0)
    beside = rates._replace(share=0.25)
    assert (rates.third(32 << 20), beside.third(32 << 20)) == (32 << 20, 8 << 20)
    image, weight = np.empty((1, 512, 14, 14), np.float32), np.empty((256, 512, 3, 3), np.float32)
    problems = [
        numbaprims.explain("gemm", np.empty((8, 1800), np.float32), np.empty((1800, 1800), np.float32)).problem,
        numbaprims.explain("gemv", np.empty((1800, 1800), np.float32), np.empty(1800, np.float32)).problem,
        numbaprims.explain("conv", image, weight, padding=1).problem,
    ]
    for problem in problems:
        grown = {
            solver.name: solver.estimate(problem, dataclasses.replace(alone, measured=beside))
            / solver.estimate(problem, dataclasses.replace(alone, measured=rates))
            for solver in registry.solvers(problem.stem, "cpu")
            if solver.why_not(problem, alone) is None
        }
        assert all(factor > 0.999 for factor in grown.values()) and max(grown.values()) > 1.1, (problem.stem, grown)
    x = np.empty(1 << 21, np.float32)
    problem = numbaprims.explain("binary", x, x.copy(), "add", out=x.copy()).problem
    solver = next(each for each in registry.solvers("tensor", "cpu") if each.name == "split")
    for each, rate, stores in ((rates, rates.l3, "plain"), (beside, rates.memory, "stream")):
        where = dataclasses.replace(alone, measured=each)
        assert where.bandwidth(problem.bytes_moved()) == rate
        assert next(iter(solver.configs(problem, where)))["stores"] == stores


def test_the_part_of_a_third_level_that_cores_find_again_is_read_in_eighths(monkeypatch):
    """And is that of many where they find more together: 64 and 128 of 260 MiB (Emerald Rapids)."""
    fits, read = [], []

    def measured(calls, schedule):
        sizes = {name: call() for name, call in calls.items()}
        read.append(list(sizes))
        return {name: types.SimpleNamespace(seconds=n / (30e9 if n <= fits[-1] else 16e9)) for name, n in sizes.items()}

    monkeypatch.setattr(rates_of, "measure", measured)
    probes = types.SimpleNamespace(read=lambda size, in_order: Probe(lambda: size, size, "in order"))
    cpu = dataclasses.replace(target.current(), l2=2 << 20, l3=260 << 20)
    for workers, most, part in ((1, 70 << 20, 2 / 8), (2, 132 << 20, 4 / 8), (1, 0, 1.0)):
        fits.append(most)
        assert rates_of.third_part(probes, cpu, workers, 1 << 30) == part
    assert read == 3 * [["memory", *(str(part / 8) for part in range(1, 9))]]
    small = dataclasses.replace(cpu, l3=16 << 20)
    fits.append(9 << 20)
    assert rates_of.third_part(probes, small, 1, 1 << 30) == 4 / 8
    assert read[-1][1] == "0.25", "the second level holds an eighth"
    for each in (dataclasses.replace(cpu, l3=0), dataclasses.replace(cpu, l3=2 << 20)):
        assert rates_of.third_part(probes, each, 1, 1 << 30) is None


def test_a_cpu_that_nobody_knows_is_estimated_from_its_isa_and_caches():
    large, small, none = (profile("unknown", "avx2", 32, l3) for l3 in (64 << 20, 8 << 20, 0))
    assert "estimated" in large.source and "avx2" in large.source
    assert small.l3 > large.l3 > large.memory == none.l3
    assert profile("unknown", "sse2", 16, 8 << 20).l1 < small.l1


def test_seconds_follow_from_rates():
    rates = CpuRates(2e9, 1e11, 5e10, 2e10, 1e10, fma=1.0)
    assert rates.cycles(4) == 2e-9
    assert rates.vectors(4) == 4e-9  # of two units; this core has one
    assert rates.flops(16) == 64e9


def test_twice_as_fast_a_core_halves_every_estimate():
    """Estimates hold no seconds of their own."""
    base = dataclasses.replace(target.current(), name="znver5", l1d=48 << 10, l2=1 << 20, l3=32 << 20)
    slow = base.rates
    rate, time = ("clock", "l1", "l2", "l3", "memory"), ("call", "wake", "phase")
    faster = {name: 2 * getattr(slow, name) for name in rate} | {name: getattr(slow, name) / 2 for name in time}
    fast = dataclasses.replace(base, measured=slow._replace(**faster))
    image, weight = np.ones((1, 32, 28, 28), np.float32), np.ones((48, 32, 3, 3), np.float32)
    deep = np.empty((1, 32, 28, 28), np.float32), np.empty((32, 1, 3, 3), np.float32)
    weights = numbaprims.RnnWeights.from_arrays(
        "lstm", np.empty((256, 64), np.float32), np.empty((256, 64), np.float32)
    )
    for problem in (
        numbaprims.explain("lstm", X[None], weights).problem,
        numbaprims.explain("gemm", X, X).problem,
        numbaprims.explain("gemm", X.astype(np.int8), X.astype(np.int8)).problem,
        numbaprims.explain("gemv", X, X[0]).problem,
        numbaprims.explain("ger", X[0], X[1]).problem,
        numbaprims.explain("conv", image, weight, padding=1).problem,
        numbaprims.explain("conv", image.astype(np.int8), weight.astype(np.int8), padding=1).problem,
        numbaprims.explain("conv", *deep, padding=1, groups=32).problem,
        numbaprims.explain("conv_backward_weight", np.empty((1, 48, 28, 28), np.float32), image, weight.shape,
                           padding=1).problem,
    ):  # fmt: skip
        for solver in registry.solvers(problem.stem, "cpu"):
            if solver.why_not(problem, base) is None:
                seconds = solver.estimate(problem, base)
                assert math.isclose(solver.estimate(problem, fast), seconds / 2, rel_tol=1e-9), solver.name


def test_kept_rates_are_those_of_estimates(mine):
    assert registry.target("cpu").rates == target.current().rates
    before = numbaprims.explain("gemm", X, X)
    rates = kept(mine)
    assert registry.target("cpu").rates == rates
    after = numbaprims.explain("gemm", X, X)
    assert after["naive"].estimate < before["naive"].estimate
    assert "calibrated 2026-01-01" in str(after) and target.current().rates.source in str(before)
    with numbaprims.config(deterministic=True):
        assert registry.target("cpu").rates == target.current().rates
    with numbaprims.config(database="off"):
        assert registry.target("cpu").rates == target.current().rates and machine.path_of("x") == ""
    assert machine.forget(str(mine)) and not machine.forget(str(mine))
    registry.calibrated()
    assert registry.target("cpu").rates == target.current().rates


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda text: text[:40], "not used"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format"),
        (lambda text: text.replace(target.current().fingerprint, "another-cpu"), "another CPU"),
        (lambda text: text.replace('"clock": ', '"clock": -'), "numbers"),
        (lambda text: text.replace('"clock": ', '"clock": NaN, "hours": '), "numbers"),
        (lambda text: text.replace('"ahead": ', '"ahead": 1.5, "hours": '), "ahead"),
        (lambda text: text.replace('"rates": {', '"rates": 3, "old": {'), "no rates"),
        (lambda text: "[" * 60_000, "not used"),
        (lambda text: "[]", "format"),
    ],
)
def test_a_file_that_cannot_be_used_costs_one_warning(mine, change, word):
    kept(mine)
    mine.write_text(change(mine.read_text()))
    registry.calibrated()
    with pytest.warns(RuntimeWarning, match=word) as caught:
        assert registry.target("cpu").rates == target.current().rates
    assert len(caught) == 1


def test_what_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert not machine.store(str(tmp_path / "file" / "rates.json"), "x", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_several_writers_leave_one_whole_file(tmp_path):
    code = (
        "import sys; from numbaprims.tuning import machine\n"
        "for i in range(200): assert machine.store(sys.argv[1], 'x', {'clock': i})"
    )
    path = tmp_path / "rates.json"
    env = dict(os.environ, PYTHONPATH=str(PACKAGE.parent))
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)], env=env) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            assert machine.load(str(path), "x") is not None
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["rates.json"]


def test_the_command_measures_keeps_shows_and_forgets(tmp_path):
    env = dict(os.environ, PYTHONPATH=str(PACKAGE.parent), NUMBAPRIMS_DATABASE=str(tmp_path / "tuning.sqlite"))

    def command(*words):
        return subprocess.run(
            [sys.executable, "-m", "numbaprims", *words], env=env, capture_output=True, text=True, timeout=300
        )

    done = command("calibrate", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    measured = CpuRates.of_document(document["measured"])
    if not EMULATED:  # 0.01 products a cycle there
        assert 5e8 < measured.clock < 1e10 and 0.2 < measured.fma < 6
        assert measured.l1 > measured.l2 and measured.memory > 1e8 and 1e-8 < measured.call < 1e-3
    assert document["profile"]["source"] == target.current().rates.source
    assert Path(document["file"]).parent == tmp_path and measured.source.startswith("calibrated 2")
    assert measured.source in command("info").stdout
    assert "removed" in command("calibrate", "--forget").stdout
    assert target.current().rates.source in command("info").stdout
    forgot = json.loads(command("calibrate", "--forget", "--json").stdout)
    assert forgot == {"removed": None, "rates": target.current().rates.source}
    assert not list(tmp_path.iterdir())
    env["NUMBAPRIMS_DATABASE"] = "off"
    done = command("calibrate", "--forget")
    assert done.returncode == 0 and "nothing was measured" in done.stdout


def test_measured_rates_are_shown_where_nothing_is_kept(monkeypatch, capsys):
    measured = target.current().rates._replace(clock=3.25e9)
    monkeypatch.setattr("numbaprims.bench.rates.measure_rates", lambda: (measured, ["a remark"]))
    assert numbaprims.settings.current().database == "", "none"
    assert main(["calibrate"]) == 1
    said = capsys.readouterr().out
    assert "3.25" in said and said.endswith("a remark\nnot kept: the settings want no database\n")
    assert main(["calibrate", "--no-store"]) == 0


def test_files_that_say_less_or_what_cannot_be():
    """Those of earlier versions say nothing of the share, of strings and of what a core does by itself."""
    whole = PROFILES["znver5"]._replace(source="calibrated")._asdict()
    assert CpuRates.of_document(whole) == CpuRates(**whole)
    unsaid = ("share", "stores", "strings", "follows", "beside")
    less = {name: value for name, value in whole.items() if name not in unsaid}
    assert CpuRates.of_document(less) == CpuRates(**less)
    for wrong in (
        {"share": 0}, {"share": 1.5}, {"stores": 0.0}, {"follows": 1}, {"beside": 1}, {"strings": -1}, {"clock": 0.0},
        {"ahead": None}, {"source": 3},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="its rates"):
            CpuRates.of_document(whole | wrong)


def drawn_problems():
    """Small ones and large ones of each primitive, and types whose arithmetic is slow."""
    for dtype in (np.float64, np.float32, np.float16):
        for m, n in ((1, 1), (8, 8), (256, 512), (8192, 8192), (1, 4096), (4096, 1)):
            x, y, a = np.empty(m, dtype), np.empty(n, dtype), np.empty((m, n), dtype)
            yield numbaprims.explain("ger", x, y, out=a).problem
            yield numbaprims.explain("ger", x, y, a=a, out=a).problem
            yield numbaprims.explain("gemv", a, y).problem
            yield numbaprims.explain("gemv", a.T, x).problem
            for name in ("relu", "softmax"):
                yield numbaprims.explain(name, a).problem
        for m, n, k in ((16, 16, 16), (1024, 1024, 1024), (64, 3136, 576), (3000, 7, 2048), (1, 4096, 1024)):
            yield numbaprims.explain("gemm", np.empty((m, k), dtype), np.empty((k, n), dtype)).problem
            yield numbaprims.explain("gemm", np.empty((m, k), dtype), np.empty((n, k), dtype), trans_b=True).problem
        for n, c, size in ((1, 3, 224), (16, 64, 56), (1, 512, 7)):
            image = np.empty((n, c, size, size), dtype)
            sums = [np.empty(c, dtype) for _ in range(4)]
            for kernel in (1, 3):
                weight = np.empty((64, c, kernel, kernel), dtype)
                yield numbaprims.explain("conv", image, weight, padding=kernel // 2).problem
            yield numbaprims.explain("max_pool", image, 3, stride=2, padding=1).problem
            yield numbaprims.explain("avg_pool", image, 2).problem
            yield numbaprims.explain("batch_norm", image, *sums).problem


def core(name, width, l3):
    facts = dict(name=name, vector_bytes=width, l1d=32 << 10, l2=512 << 10, l3=l3, measured=None)
    return dataclasses.replace(target.current(), **facts)


def test_naive_is_chosen_on_no_machine():
    """Whatever the rates are: the definition costs more than whoever moves the same bytes."""
    cores = [core(name, 64, 32 << 20) for name in PROFILES]
    cores += [core("unknown", width, l3) for width in (16, 32, 64) for l3 in (0, 8 << 20, 64 << 20)]
    for problem in drawn_problems():
        for cpu in cores:
            seconds = {
                solver.name: solver.estimate(problem, cpu)
                for solver in registry.solvers(problem.stem, "cpu")
                if solver.why_not(problem, cpu) is None
            }
            assert min(seconds, key=seconds.__getitem__) != "naive", (cpu.name, cpu.vector_bytes, cpu.l3, problem)


def test_weights_decide_how_a_recurrent_network_runs():
    """Long sequences read the recurrent weights at each step and those of the inputs once; a single step does not pay
    for packing."""
    for cpu in (core(name, 64, 32 << 20) for name in PROFILES):
        seconds = {
            steps: {
                solver.name: solver.estimate(RnnProblem(
                    "lstm", "f32", steps, 1, steps, 2048, 2048, 0, 1, 1, False, "concat", False, True, False, False,
                    False, "inference", "time",
                ), cpu)
                for solver in registry.solvers("rnn", "cpu")
            } for steps in (1, 50)
        }  # fmt: skip
        assert min(seconds[50], key=seconds[50].__getitem__) == "persistent", (cpu.name, seconds[50])
        assert seconds[50]["step_by_step"] > 1.2 * seconds[50]["persistent"]
        assert min(seconds[1], key=seconds[1].__getitem__) in ("single_gemm", "step_by_step"), (cpu.name, seconds[1])
