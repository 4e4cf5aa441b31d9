"""The command ``numbaprims``: each subcommand as a user runs it, in a process of its own."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import numbaprims
from numbaprims import cli
from numbaprims.cpu import threads
from numbaprims.stems import STEMS

SOURCE = Path(numbaprims.__file__).resolve().parent.parent


def command(*words: str, **environment: str) -> subprocess.CompletedProcess:
    env = dict(os.environ, PYTHONPATH=str(SOURCE), **environment)
    return subprocess.run(
        [sys.executable, "-m", "numbaprims", *words], env=env, capture_output=True, text=True, timeout=300
    )


def test_version_and_help_load_nothing_heavy():
    code = (
        "import sys\nfrom numbaprims.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "sys.exit('numpy' in sys.modules or 'numba' in sys.modules)"
    )
    env = dict(os.environ, PYTHONPATH=str(SOURCE))
    for words in (["--version"], ["--help"]):
        done = subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert numbaprims.__version__ in done.stdout or all(name in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_keeps_the_contract(name: str, capsys: pytest.CaptureFixture):
    module = importlib.import_module(cli.COMMANDS[name][0])
    assert callable(module.run)
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    assert f"usage: numbaprims {name}" in capsys.readouterr().out


def test_unknown_command_is_refused():
    done = command("benhc")
    assert done.returncode == 2
    assert "benhc" in done.stderr and "bench" in done.stderr


def test_no_command_lists_the_commands(capsys: pytest.CaptureFixture):
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {name}" in shown for name in cli.COMMANDS)


def test_explain_names_a_problem_as_find_does(capsys: pytest.CaptureFixture):
    words = "conv --n 1 --c 64 --hw 56 --k 64 --rs 3 --pad 1".split()
    assert cli.main(["explain", *words]) == 0
    shown = capsys.readouterr().out
    assert "chosen: " in shown and "refused: depthwise: " in shown and max(map(len, shown.splitlines())) <= 80
    assert cli.main(["explain", *words, "--wide"]) == 0
    assert "ConvProblem(direction='forward', n=1, c=64" in capsys.readouterr().out
    assert cli.main(["explain", "ger", "--m", "9", "--n", "9", "--phases"]) == 0
    assert "phases:\n  ger" in capsys.readouterr().out
    assert cli.main(["explain", "ger", "--m", "9", "--n", "9", "--measure"]) == 0
    assert " measured " in capsys.readouterr().out
    assert cli.main(["explain", "gemm", "--m", "9", "--n", "9"]) == 2
    assert "numbaprims explain: --k missing" in capsys.readouterr().err


@pytest.mark.parametrize("words, said", [
    ("find gemm --m -1 --n 2 --k 2", "argument --m: '-1' given, allowed are whole numbers from 1"),
    ("explain gemm --m 0 --n 2 --k 2", "argument --m: '0' given, allowed are whole numbers from 1"),
    ("tune conv --n 1 --c 4 --hw 8 --k 4 --rs x", "argument --rs: 'x' given, allowed are whole numbers from 1"),
    ("bench conv --n 1 --c 4 --h 8 --w 8 --k 4 --r 3 --s 3 --groups -2", "argument --groups: '-2' given"),
    ("explain gemm --m 99999999999999999999 --n 2 --k 2", "argument --m: '99999999999999999999' given"),
    ("bench gemm --time-limit -1", "argument --time-limit: '-1' given, allowed are seconds above 0"),
    ("bench gemm --threads 1,100000", "argument --threads: '100000' given, allowed are up to"),
    ("bench gemm --threads x", "argument --threads: 'x' given, allowed are whole numbers from 1"),
    ("bench gemm --batch 1,0", "argument --batch: '0' given, allowed are whole numbers from 1"),
    ("reproduce zhang-table2 --threads -1", "argument --threads: '-1' given, allowed are whole numbers from 1"),
    ("reproduce zhang-table2 --batch 0", "argument --batch: '0' given, allowed are whole numbers from 1"),
    ("reproduce zhang-table2 --time-limit nan", "argument --time-limit: 'nan' given, allowed are seconds above 0"),
    ("tune gemm --budget nan", "argument --budget: 'nan' given, allowed are seconds above 0"),
    ("tune gemm --jobs 0", "argument --jobs: '0' given, allowed are whole numbers from 1"),
    ("warmup --jobs -3", "argument --jobs: '-3' given, allowed are whole numbers from 1"),
    ("find conv --n 1 --c 4 --hw 8 --k 4 --rs 3 --stride 0", "stride: '0' given, allowed are one number or 2 from 1"),
    ("find conv --n 1 --c 4 --hw 8 --k 4 --rs 3 --dilation x", "dilation: 'x' given, allowed are one number or 2"),
    ("find conv --n 1 --c 4 --d 4 --z 1 --hw 8 --k 4 --rs 3 --stride 0x1x1", "stride: '0x1x1' given"),
    ("find conv --n 1 --c 4 --hw 8 --k 4 --rs 3 --padding=-1", "padding: '-1' given, allowed are one number or 2"),
])  # fmt: skip
def test_a_wrong_size_is_named(words: str, said: str, capsys: pytest.CaptureFixture):
    try:
        assert cli.main(words.split()) == 2
    except SystemExit as stopped:
        assert stopped.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words, said", [
    ("bench gemm --quick --save /dev/null/x", "numbaprims bench: [Errno 20] Not a directory"),
    ("bench gemm --quick --json /", "numbaprims bench: [Errno 21] Is a directory: '/'"),
    ("bench gemm --quick --plot p.xyz", "plot: 'p.xyz' given, allowed are files that end in .png, .svg or .pdf"),
    ("reproduce zhang-table1 --save /dev/null/x", "numbaprims reproduce: [Errno 20] Not a directory"),
])  # fmt: skip
def test_what_cannot_be_written_is_not_measured(words: str, said: str):
    done = command(*words.split())
    assert done.returncode == 2 and done.stderr.startswith("numbaprims ") and said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("text", [
    "[]", "null", "[" * 100_000, '{"schema": 1, "figure": "zhang-table2", "ent', '{"schema": 1, "records": [{}]}',
    '{"schema": 1, "records": 5, "commit": "", "date": ""}', '{"schema": 1, "figure": "zhang-table2"}',
    '{"schema": 1, "figure": "zhang-table2", "entries": [{}], "records": [{"threads": 1}]}',
])  # fmt: skip
def test_damaged_results_are_named(text: str, tmp_path: Path, capfd: pytest.CaptureFixture):
    path = tmp_path / "kept.json"
    path.write_text(text)
    lines = {"records": f"bench ger --removed= --quick --append --json {path}"}
    lines["figure"] = f"reproduce zhang-table2 --redraw {path}"
    for holds, line in lines.items():
        if "schema" not in text or holds in text:
            assert cli.main(line.split()) == 2
            said = capfd.readouterr()
            assert f"{path}: it is damaged" in said.err and said.out == ""
    assert path.read_text() == text


def test_what_memory_cannot_hold_is_told_in_a_line(capsys: pytest.CaptureFixture):
    for name in ("explain", "find"):
        assert cli.main(f"{name} gemm --m 100000000 --n 100000000 --k 100000000".split()) == 1
        assert capsys.readouterr().err.startswith("numbaprims: Unable to allocate ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", ["info", "explain ger --m 9 --n 9", "bench call --quick"])
def test_output_that_nobody_takes(words: str):
    env = dict(os.environ, PYTHONPATH=str(SOURCE))
    line = [sys.executable, "-m", "numbaprims", *words.split()]
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does, only sooner
    with os.fdopen(writer, "w") as closed, open("/dev/full", "w") as full:
        for stream, status, said in ((closed, {141}, ""), (full, {1, 2}, "No space left on device")):
            done = subprocess.run(line, env=env, stdout=stream, stderr=subprocess.PIPE, text=True, timeout=300)
            assert done.returncode in status, done.stderr
            assert "Traceback" not in done.stderr and said in done.stderr and "ignored" not in done.stderr


def test_output_that_was_closed_before():
    """As ``>&-`` does: Python has no sys.stdout then."""
    for words, status in (("cache info", 0), ("explain gemm --m 100000000 --n 100000000 --k 100000000", 1)):
        line = f"import sys; sys.stdout = None; from numbaprims import cli; sys.exit(cli.main({words.split()}))"
        env = dict(os.environ, PYTHONPATH=str(SOURCE))
        done = subprocess.run([sys.executable, "-c", line], env=env, capture_output=True, text=True)
        assert done.returncode == status and "Traceback" not in done.stderr, done.stderr


def test_kernels_run_where_the_users_own_functions_do_not_compile(tmp_path: Path):
    code = (
        "import numba, numpy as np, numbaprims\nx = np.ones((4, 4), np.float32)\n"
        "f = numba.njit(lambda a: numbaprims.gemm(a, a))\n"
        "print(type(f).__name__, f(x)[0, 0], numbaprims.relu(x)[0, 0], numba.config.DISABLE_JIT)"
    )
    env = dict(os.environ, PYTHONPATH=str(SOURCE), NUMBA_DISABLE_JIT="1")
    for cache in (os.environ["NUMBAPRIMS_CACHE_DIR"], str(tmp_path)):  # loaded, and compiled
        env["NUMBAPRIMS_CACHE_DIR"] = cache
        used = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert used.stdout.split() == ["function", "4.0", "1.0", "1"], used.stderr


def test_info_tells_the_truth():
    done = command("info", "--json", OPENBLAS_CORETYPE="Haswell", NUMBAPRIMS_THREADS="1")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    from importlib.metadata import version

    assert facts["versions"]["numbaprims"] == numbaprims.__version__
    assert facts["versions"]["numba"] == version("numba")
    assert facts["cpu"]["vector_bits"] in (128, 256, 512)
    if facts["cpu"]["vector_bits"] == 512:
        assert "avx512f" in facts["cpu"]["features"]
    assert facts["cpu"]["l1d_bytes"] < facts["cpu"]["l2_bytes"]
    assert facts["threads"]["count"] == 1
    assert facts["threads"]["layer"] in ("omp", "tbb", "workqueue") and facts["threads"]["why_layer"]
    gpu = facts["gpu"]
    assert gpu["available"] is bool(gpu["devices"]) and bool(gpu["why"]) is not gpu["available"]
    assert facts["cache"]["directory"].startswith(os.environ["NUMBAPRIMS_CACHE_DIR"])
    assert any("OPENBLAS_CORETYPE=Haswell" in line for line in facts["warnings"])


def drivers() -> int:
    """Functions of the drivers: under OpenMP also what its regions run."""
    return 2 + threads.direct()


def test_info_as_text_names_every_section(tmp_path: Path):
    done = command("info", NUMBAPRIMS_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    for heading in ("numba ", "CPU ", "features ", "caches ", "threads ", "layer ", "GPU ", "kernel cache "):
        assert f"\n{heading}" in done.stdout
    # a fresh directory: both drivers were compiled, and a second run finds them
    assert f"{drivers()} compiled" in done.stdout
    assert f"{drivers()} found, 0 compiled" in command("info", NUMBAPRIMS_CACHE_DIR=str(tmp_path)).stdout


def test_cache_info_and_clear(tmp_path: Path):
    here = {"NUMBAPRIMS_CACHE_DIR": str(tmp_path)}
    assert "entries    0" in command("cache", "info", **here).stdout
    command("info", **here)
    shown = command("cache", "info", **here).stdout
    assert str(tmp_path) in shown and f"entries    {drivers()}" in shown
    assert f"{drivers()} kernels deleted" in command("cache", "clear", **here).stdout
    assert "entries    0" in command("cache", "info", **here).stdout


def test_warmup_fills_the_cache(tmp_path: Path):
    here = {"NUMBAPRIMS_CACHE_DIR": str(tmp_path)}
    done = command("warmup", "ger", "--jobs", "1", **here)
    assert done.returncode == 0, done.stderr
    entries = int(command("cache", "info", **here).stdout.split("entries")[1].split()[0])
    assert entries > drivers()  # more than the drivers
    code = (
        "import numpy as np, numbaprims; from numbaprims import kernel_cache\n"
        "x, y, a = (np.ones(shape, np.float32) for shape in (33, 77, (33, 77)))\n"
        "numbaprims.ger(x, y, a=a, out=a); print(kernel_cache.statistics()['misses'])"
    )
    env = dict(os.environ, PYTHONPATH=str(SOURCE), **here)
    used = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert used.stdout.strip() == "0", "a call after the warm-up still compiled"


def test_calls_of_warm_problems_want_no_other_kernels():
    """Of each stem the first problem forward and the first backward, and of convolutions the first plan's."""
    code = (
        "import argparse, numbaprims; from numbaprims import kernel_cache\n"
        "from numbaprims.cli import problems, warmup; from numbaprims.dispatch import examples\n"
        "wanted = lambda: kernel_cache.statistics()['hits'] + kernel_cache.statistics()['misses']\n"
        "parser = argparse.ArgumentParser(); warmup.add_arguments(parser); warmup.compile_common()\n"
        "for stem, options in warmup._asked(parser.parse_args(['--shapes', 'quick'])):\n"
        "    posed = warmup.pose(stem, options)\n"
        "    kinds = {(each.stem, getattr(each, 'prepared', False)): each for each in reversed(posed)}\n"
        "    for problem in kinds.values():\n"
        "        before = wanted(); warmup.compile_problem(problem); warm = wanted()\n"
        "        examples.example_call(problem.stem, problem)()\n"
        "        print(stem, warm - before, wanted() - warm)"
    )
    env = dict(os.environ, PYTHONPATH=str(SOURCE))
    used = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    lines = [line.split() for line in used.stdout.splitlines()]
    kernels = dict.fromkeys(STEMS, 0)
    for stem, warm, _ in lines:
        kernels[stem] += int(warm)
    # what these two take was compiled for products and reductions
    assert {stem for stem, warm in kernels.items() if not warm} <= {"tensor", "quantize"}
    assert [line for line in lines if line[2] != "0"] == []


def test_rivals_that_nothing_is_measured_beside_are_named():
    done = command("bench", "softmax", "--quick", "--rivals", "torch,bogus")
    assert done.returncode == 2
    assert "--rivals bogus: softmax is measured beside torch, onnxruntime, numpy" in done.stderr


def test_warmup_refuses_what_does_not_exist():
    done = command("warmup", "gem")
    assert done.returncode == 2
    assert "'gem'" in done.stderr and "gemm" in done.stderr
    for name in ("warmup", "tune"):
        done = command(name, "gemm", "--suite", "resnet50")
        assert done.returncode == 2 and "there is no suite 'resnet50' of gemm" in done.stderr
    done = command("warmup", "conv", "--hw", "10", "--jobs", "1")
    assert done.returncode == 2 and "--c --k" in done.stderr
