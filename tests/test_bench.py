"""The benchmarks: cases and shapes, rivals held to the reference, targets, tables, the command, reports."""

import argparse
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import EMULATED

from numbaprims.bench import cases, command, operands, plot, report, results, rivals, runner, table, targets
from numbaprims.bench.cases import OURS, Contender, Workload
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.tuning.timing import Schedule


def options(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def chosen(*words):
    given = options(*words)
    return cases.stem_module(given.subject).cases(given)


# Cases and shapes ------------------------------------------------------------------------------------


LEAST = {"gemm": 270, "gemv": 36, "ger": 17, "activation": 130, "softmax": 31, "batch_norm": 108, "norm": 52,
         "pooling": 42, "stack": 39, "rnn": 33, "attention": 30, "ctc": 13}  # fmt: skip


@pytest.mark.parametrize("stem, least", LEAST.items())
def test_every_suite_gives_cases_once(stem, least):
    found = chosen(stem, "--shapes", "all")
    assert len(found) >= least
    labels = [(case.suite, case.label) for case in found]
    assert len(set(labels)) == len(labels)
    assert all(size > 0 for case in found for _, size in case.sizes)


def test_the_shapes_that_the_project_is_judged_by_are_there():
    found = {case.shape for case in chosen("gemm")}
    assert {f"{n}x{n}x{n}" for n in (256, 512, 1000, 1024, 2048, 4096)} <= found
    assert {"64x3136x576", "256x196x2304", "128x4096x1024", "35x8457x2560", "32x1760x1760"} <= found
    assert {"1760x16x1760", "3000x7x2048", "10x10000x64", "777x333x55"} <= found
    assert len(chosen("gemm", "--shapes", "deepbench")) == 243, "DeepBench's 248 rows without 5 repeated ones"
    assert {case.shape for case in chosen("gemv")} == {
        *(f"{n}x{n}" for n in (256, 512, 1024, 2048, 4096)),
        *(f"128x{256 << i}" for i in range(7)),
        *(f"256x{512 << i}" for i in range(6)),
    }
    assert "8192x8192" in {case.shape for case in chosen("ger")}
    kinds = {case["kind"] for case in chosen("activation")}
    assert kinds == set(KINDS) - {"identity", "prelu"} | {"gelu_tanh"}


def test_a_case_is_what_its_command_says():
    words = "--shapes 64x3136x576 --dtype bf16 --trans-b --bias --activation relu --batch 3"
    (case,) = chosen("gemm", *words.split())
    assert case.dtype == "bf16" and case["trans_b"] is True and case["batch"] == 3
    again = command_of(case.command)
    assert again == case
    (case,) = chosen("activation", "--shapes", "1000", "--kind", "gelu", "--backward")
    assert command_of(case.command) == case and case.label == "gelu 1000 backward"
    (case,) = chosen("gemv", "--shapes", "33x77", "--trans")
    assert command_of(case.command) == case


def command_of(text):
    program, bench, *words = text.split()
    assert (program, bench) == ("numbaprims", "bench")
    (case,) = chosen(*words)
    return case


A, B, X = np.ones((20, 30), np.float32), np.ones((50, 30), np.float32), np.ones(20, np.float32)
LOGGED = {
    "gemm": (("gemm", A, B), {"trans_b": True, "bias": np.ones(50, np.float32), "activation": "relu"}, "20x50x30",
             {"trans_b": True, "bias": True, "activation": "relu"}),
    "linear": (("linear", A, B), {}, "20x50x30", {"trans_b": True}),
    "gemv": (("gemv", A, np.ones(30, np.float32)), {}, "20x30", {}),
    "gemv transposed": (("gemv", A, X), {"trans": True}, "20x30", {"trans": True}),
    "ger": (("ger", X, np.ones(30, np.float32)), {}, "20x30", {}),
    "activation": (("activation", A, "gelu"), {}, "600", {"kind": "gelu"}),
    "relu6": (("relu6_backward", A, A), {}, "600", {"kind": "clipped_relu", "backward": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGGED)
def test_commands_that_a_logged_call_names_are_understood(name):
    from numbaprims.dispatch.explain import problem_of

    arguments, keywords, shape, switches = LOGGED[name]
    case = command_of(problem_of(*arguments, **keywords).bench_command())
    assert case.shape == shape and dict(case.switches) == switches


@pytest.mark.parametrize(
    "words, message",
    [
        (["gemm", "--shapes", "64x64"], "shapes: '64x64'"),
        (["gemm", "--shapes", "nonsense"], "shapes: 'nonsense'.*square"),
        (["gemv", "--shapes", "0x4"], "shapes: '0x4'"),
        (["activation", "--kind", "rleu"], "kind: 'rleu'.*relu"),
    ],
)
def test_wrong_arguments_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        chosen(*words)


@pytest.mark.parametrize("words", [["gemm", "--dtype", "f31"], ["gemm", "--threads", "0"], ["gem"]])
def test_the_parser_refuses(words, capsys):
    with pytest.raises(SystemExit):
        options(*words)
    assert "allowed" in capsys.readouterr().err or words == ["gem"]


# Operands and checks ---------------------------------------------------------------------------------


def test_bf16_rounds_to_nearest_even():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(1).standard_normal(10000, np.float32) * 100
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], np.float32)
    for x in (values, halfway):
        assert np.array_equal(operands.to_bf16(x), x.astype(ml_dtypes.bfloat16).view(np.uint16))
    patterns = operands.to_bf16(values)
    assert np.array_equal(operands.to_bf16(operands.from_bf16(patterns)), patterns)


def test_operands_are_aligned():
    for dtype in ("f64", "f32", "f16", "bf16", "i8"):
        assert operands.Operand.empty((3, 5), dtype).storage.ctypes.data % 64 == 0


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_an_output_that_nobody_wrote_does_not_pass(dtype):
    out = operands.Operand.empty((4, 4), dtype)
    assert cases.disagreement(out.values(), np.zeros((4, 4)), 1.0) is not None


def test_a_wrong_contender_is_not_timed():
    out = np.zeros(4)

    def check(got):
        return cases.disagreement(got, np.arange(4.0), 1e-9)

    def right():
        out[:] = np.arange(4.0)

    def wrong():
        out[:] = [0, 1, 2, 4]

    def incomplete():
        out[:3] = np.arange(3.0)

    def broken():
        raise RuntimeError("no such kernel")

    calls = {"right": right, "wrong": wrong, "incomplete": incomplete, "broken": broken}
    contenders = {name: Contender(call, lambda: out) for name, call in calls.items()}
    work = Workload(contenders, check, 1.0, 1.0, "fma", lambda: "", output=out)
    refused = runner.check_contenders(work)
    assert set(refused) == {"wrong", "incomplete", "broken"}
    assert "off by 1 at (3,)" in refused["wrong"]
    assert "not finite" in refused["incomplete"]
    assert refused["broken"] == "RuntimeError: no such kernel"


def test_the_error_bound_is_smaller_than_the_values():
    assert cases.sum_bound(10.0, 4096, "f32") < 0.01
    assert cases.sum_bound(10.0, 4096, "bf16") < 0.2
    assert cases.sum_bound(10.0, 4096, "i8") == 0


SMALL = [
    "gemm --shapes 33x17x65,64x64x64 --dtype f32,f64",
    "gemm --shapes 33x17x65 --trans-a",
    "gemm --shapes 33x17x65 --trans-b --bias --activation relu",
    "gemm --shapes 5x9x7 --batch 3",
    "gemm --shapes 33x16x64,256x256x256 --dtype bf16,int8",
    "gemv --shapes quick --dtype f32,f64",
    "ger --shapes quick --dtype f32,f64",
    "activation --shapes 1000,16384",
    "activation --shapes 1000 --dtype f64,bf16",
    "activation --shapes 1000 --backward --kind " + ",".join(sorted(set(KINDS) - {"glu", "prelu"} | {"gelu_tanh"})),
]


@pytest.mark.parametrize("words", SMALL)
def test_every_contender_computes_the_case(words):
    """Rivals and ours, in the very form that is timed, against the float64 definition."""
    for case in chosen(*words.split()):
        work = cases.stem_module(case.stem).workload(case, 1)
        assert runner.check_contenders(work) == {}, case.label
        assert OURS in work.contenders and work.flops > 0 and work.bytes > 0
        assert work.solver()


def test_a_planted_error_is_seen_in_every_primitive():
    for words in (
        "gemm --shapes 33x17x65",
        "gemv --shapes 33x77",
        "ger --shapes 33x77",
        "activation --shapes 1000",
        "softmax --shapes quick --kind cross_entropy --backward",
        "softmax --shapes 100x33 --kind softmax",
        "batch_norm --shapes quick --layout NHWC",
        "pooling --shapes quick",
        "stack --shapes quick --kind avg",
    ):
        case = chosen(*words.split())[-1]
        work = cases.stem_module(case.stem).workload(case, 1)
        contender = work.contenders[OURS]
        contender.call()
        good = contender.result().copy()
        if contender.reset:
            contender.reset()
            contender.call()
            good = contender.result().copy()
        assert work.check(good) is None
        bad = good.copy()
        bad[(-1,) * bad.ndim] += 0.01
        assert "off by" in work.check(bad)


# Rivals ----------------------------------------------------------------------------------------------


def test_caps_are_removed_and_nothing_else():
    environment = {
        "OPENBLAS_CORETYPE": "Haswell",
        "OPENBLAS_L2_SIZE": "1024",
        "MKL_CBWR": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "default",
        "OMP_NUM_THREADS": "1",
        "PATH": "/bin",
        "NUMBAPRIMS_VERBOSE": "0",
    }
    assert rivals.clean_environment(environment) == {"PATH": "/bin", "NUMBAPRIMS_VERBOSE": "0", **rivals.SETTLED}
    assert set(rivals.caps(environment)) == set(environment) - {"PATH", "NUMBAPRIMS_VERBOSE"}


def test_a_lesser_cpu_holds_for_all_libraries(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        rivals.subprocess, "run", lambda words, env, check: seen.update(env) or argparse.Namespace(returncode=0)
    )
    assert rivals.run_again("module", {"cpu": "x86-64-v3"}) == 0
    assert seen.items() >= rivals.RESTRICTIONS["x86-64-v3"].items()
    assert not rivals.restricted()
    for name, value in rivals.RESTRICTIONS["x86-64-v3"].items():
        monkeypatch.setenv(name, value)
    assert rivals.restricted()
    assert rivals.load_rival.__wrapped__("onnxruntime") is None


def test_every_library_gets_the_same_threads():
    torch = pytest.importorskip("torch")
    from numbaprims.cpu import threads

    before = torch.get_num_threads()
    for count in (1, 2):
        with rivals.limit_threads(count):
            assert torch.get_num_threads() == count
            assert threads.count() == count
    assert torch.get_num_threads() == before


def test_kernels_of_each_rival_are_named():
    found = rivals.kernels()
    assert set(rivals.versions()) <= set(found)
    assert all(found.values())


# Roofline --------------------------------------------------------------------------------------------


def test_the_probes_do_what_they_are_counted_for():
    from numbaprims.cpu import roofline

    for count in (1000, 100_003):
        x = np.arange(count, dtype=np.float32) % 7
        y = cases.aligned_empty(x.shape, np.float32)
        for streaming in (False, True):
            y.fill(-1)
            roofline.copier(x, y, streaming=streaming)()
            assert np.array_equal(x, y)
        for pages in (False, True):
            call, sums = roofline.reader(x, pages=pages)
            call()
            assert sums.sum() == x.sum(dtype=np.float64)
        roofline.updater(x)()
        assert np.array_equal(x, y)
    call, flops = roofline.fma_peak("f64")
    call()
    assert flops > 1e6
    x = np.ones(6144, np.float32)
    for pages in (False, True):
        call, sums, amount = roofline.cache_reader(x, pages=pages)
        call()
        assert (sums == sums[0]).all() and 4 * sums.sum() == amount >= 4 * (roofline.CACHED_BYTES - x.nbytes)


def test_the_way_from_core_to_core_and_back():
    import numbaprims
    from numbaprims.cpu import roofline, threads

    with numbaprims.config(threads=1):
        assert roofline.round_trip() is None
    with numbaprims.config(threads=2):
        found = roofline.round_trip()
        # None where the second thread gets no core of its own for so long
        assert found is None or threads.count() == 2 and 1e-8 < found < 1e-2


@pytest.mark.parametrize("kind", ["bf16", "u8s8"])
def test_the_peak_of_narrow_types_is_measured(kind):
    """That nothing of it is optimised away: tests/cpu/test_named_cpus.py."""
    from numbaprims.cpu import roofline

    if not roofline.has_dot(kind):
        pytest.skip(f"this CPU has no instruction for {kind}")
    call, operations = roofline.dot_peak(kind)
    call()
    assert operations > 1e6


# Targets, tables, results ----------------------------------------------------------------------------


def record(label="256x256x256", percent=80.0, **speedups):
    n = int(label.split("x")[0])
    return {
        "stem": "gemm", "suite": "square", "label": label, "sizes": {"m": n, "n": n, "k": n}, "switches": {},
        "dtype": "f32", "threads": 1, "solver": "blocked", "seconds": 1e-3, "gflops": 100.0, "gbs": 1.0,
        "bytes": 12.0 * n * n, "flops": 2.0 * n**3,
        "roof": {"bound": "fma", "rate": 120.0, "percent": percent},
        "rivals": {name: {"seconds": 1e-3, "speedup": value} for name, value in speedups.items()},
    }  # fmt: skip


def test_targets_say_what_was_reached():
    records = [
        record("256x256x256", 90, numpy=1.0, torch=2.0),
        record("512x512x512", 80, numpy=0.81, torch=2.9),
        record("64x64x64", 1, numpy=0.1),  # outside 256-4096
        {**record("1024x1024x1024"), "error": "wrong result", "rivals": {}},
    ]
    rows = {row["name"]: row for row in targets.summarise(records)}
    peak = rows["f32, square 256-4096, of the FMA peak"]
    assert peak["value"] == pytest.approx((90 * 80) ** 0.5) and peak["verdict"] == "floor" and peak["cases"] == 2
    over = rows["f32, square 256-4096, over NumPy (OpenBLAS)"]
    assert over["value"] == pytest.approx(0.9)
    assert over["verdict"] == "MISSED by 2 %" and over["worst"] == "512x512x512"
    assert rows["f32, square 256-4096, over torch.mm (MKL)"]["verdict"] == "aim"


def test_times_are_better_when_lower():
    start = [{"stem": "start", "label": "gemm", "threads": 1, "cold": 3.0, "warm": 1.8}]
    rows = targets.summarise(start)
    assert [row["verdict"] for row in rows] == ["floor", "MISSED by 100 %"]


def test_every_row_of_the_goals_has_a_target():
    assert {target.stem for target in targets.TARGETS} == {*cases.STEMS, "call", "start"}
    for target in targets.TARGETS:
        assert target.aim is not None or target.floor is not None
        if None not in (target.aim, target.floor):
            assert (target.aim < target.floor) == target.lower


def test_lines_hide_nothing():
    text = table.line({**record(numpy=1.25), "refused": {"torch": "wrong result: off by 3"}})
    assert "1.25" in text and "torch: not timed, wrong result: off by 3" in text
    failed = {**record(), "error": "ValueError: no solver"}
    assert "NOT MEASURED: ValueError: no solver" in table.line(failed)
    assert table.failures([record(), failed, record()]) == [table.line(failed)]


def test_results_are_written_whole_and_rounded(tmp_path):
    path = tmp_path / "machine" / "gemm.json"
    results.save(path, {"schema": results.SCHEMA, "value": 1.23456789, "bad": float("nan")})
    assert results.read(path)["value"] == 1.2346 and results.read(path)["bad"] is None
    assert [p.name for p in path.parent.iterdir()] == ["gemm.json"]
    results.save(path, {"schema": -1})
    with pytest.raises(ValueError, match="schema -1"):
        results.read(path)


# The command -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """One real run in a process of its own, with a cap in its environment."""
    path = tmp_path_factory.mktemp("bench") / "gemv.json"
    words = ["gemv", "--quick", "--threads", "1", "--json", str(path)]
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "numbaprims.bench", *words], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return results.read(path), done.stdout


def test_the_command_measures_without_the_caps(document):
    found, printed = document
    assert set(found["removed_from_environment"]) >= {"OMP_NUM_THREADS", "OPENBLAS_CORETYPE"}
    assert "removed from the environment" in printed
    assert found["commit"] is None or len(found["commit"]) >= 12
    assert [r["label"] for r in found["records"]] == [
        "256x256", "128x1024", "33x77", "256x256 trans", "128x1024 trans", "33x77 trans",
    ]  # fmt: skip
    for entry in found["records"]:
        assert entry["seconds"] > 0 and entry["roof"]["percent"] > 0 and entry["solver"]
        assert set(entry["rivals"]) == {n for n in ("numpy", "torch", "scipy") if n in found["versions"]}
        assert entry["label"] in printed
    assert found["rooflines"]["1"]["fma_f32"] > 0


def test_each_level_of_memory_has_a_roof(document):
    from numbaprims.cpu import target

    levels, cpu = document[0]["rooflines"]["1"]["levels"], target.current()
    caches = [("L1", cpu.l1d), ("L2", cpu.l2), ("L3", cpu.l3), ("memory", None)]
    assert [(level["name"], level["bytes"]) for level in levels] == [cache for cache in caches if cache[1] != 0]
    rates = [level["read"] for level in levels]
    assert EMULATED or rates[0] > rates[1] > rates[-1] > 0, "the nearer, the faster"
    assert levels[-1]["read"] == document[0]["rooflines"]["1"]["read"]
    shown = re.search(r"\(L1 (\d+), L2 (\d+)", document[1])
    # rounded from what was measured; the document has five digits of it, and 512.5 may be 512.503
    assert shown and [int(each) for each in shown.groups()] == pytest.approx(rates[:2], abs=0.51)


def test_the_plot_has_labelled_axes(document, tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(document[0], str(tmp_path / "gemv.svg"))
    plot.draw(document[0], str(tmp_path / "gemv.png"))
    assert (tmp_path / "gemv.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.draw({**document[0], "records": []}, "never.png")


def test_the_report_is_written_between_its_markers(document, tmp_path):
    folder = tmp_path / "results" / document[0]["machine"]["slug"]
    results.save(folder / "gemv.json", document[0])
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated:bench gemv quick -->\nold\n<!-- end -->\nafter\n")
    where = ["--results", str(tmp_path / "results")]
    assert report.main(["--check", str(page), *where]) == 1
    assert report.main(["--write", str(page), *where]) == 0
    assert report.main(["--check", str(page), *where]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| 128x1024 trans |" in text and "Geometric means" in text
    page.write_text("<!-- generated:bench nonsense -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match="nonsense"):
        report.main(["--write", str(page), *where])


def test_every_marker_of_the_report_makes_a_table(document):
    machines = {"here": {"gemv": document[0]}}
    for name in ("targets", "machine", "gemv quick"):
        assert "|" in report.tables(name, machines) or name == "targets"
    assert report.tables("gemm square", machines).startswith("No results")


def test_what_was_measured_on_a_gpu_has_a_table_of_its_own(document):
    here = document[0]
    there = {**here, "machine": {**here["machine"], "gpu": "B1"}, "rooflines": {"cuda": {"copy": 3e3, "fma_f32": 7e4}}}
    assert report.tables("gpu", {"here": {"gemv": here}}).startswith("No results")
    both = {"here": {"gemv": here}, "there": {"gemv": there}}
    assert report.tables("gpu", both).startswith("B1: 3000 GB/s copied, 70 TFLOP/s f32")
    assert "| gemv | 128x1024 trans | f32 |" in report.tables("gpu", both)
    for name in ("gemv quick", "headlines"):
        assert report.tables(name, both) == report.tables(name, {"here": {"gemv": here}})


def test_arguments_survive_the_new_process():
    given = options("gemm", "--threads", "1,2", "--shapes", "5x6x7", "--trans-b", "--time-limit", "2.5")
    assert argparse.Namespace(**json.loads(json.dumps(vars(given)))) == given
    line = command.command_line(given)
    assert options(*line.split()[2:]) == given


def test_a_slow_machine_ends_in_time():
    """The schedule of the command: three rounds, then no round that would end past the limit."""
    from numbaprims.bench.session import schedule

    assert schedule(options("gemm")) == Schedule(time_limit=10.0)
    assert schedule(options("gemm", "--time-limit", "3")).time_limit == 3.0
