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


def test_info_as_text_names_every_section(tmp_path: Path):
    done = command("info", NUMBAPRIMS_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    for heading in ("numba ", "CPU ", "features ", "caches ", "threads ", "layer ", "GPU ", "kernel cache "):
        assert f"\n{heading}" in done.stdout
    # a fresh directory: both drivers were compiled, and a second run finds them
    assert "2 compiled" in done.stdout
    assert "2 found, 0 compiled" in command("info", NUMBAPRIMS_CACHE_DIR=str(tmp_path)).stdout


def test_cache_info_and_clear(tmp_path: Path):
    here = {"NUMBAPRIMS_CACHE_DIR": str(tmp_path)}
    assert "entries    0" in command("cache", "info", **here).stdout
    command("info", **here)
    shown = command("cache", "info", **here).stdout
    assert str(tmp_path) in shown and "entries    2" in shown
    assert "2 kernels deleted" in command("cache", "clear", **here).stdout
    assert "entries    0" in command("cache", "info", **here).stdout


def test_warmup_fills_the_cache(tmp_path: Path):
    here = {"NUMBAPRIMS_CACHE_DIR": str(tmp_path)}
    done = command("warmup", "ger", "--jobs", "1", **here)
    assert done.returncode == 0, done.stderr
    entries = int(command("cache", "info", **here).stdout.split("entries")[1].split()[0])
    assert entries > 2  # more than the drivers
    code = (
        "import numpy as np, numbaprims; from numbaprims import kernel_cache\n"
        "x = np.ones(33, np.float32); numbaprims.ger(x, x); print(kernel_cache.statistics()['misses'])"
    )
    env = dict(os.environ, PYTHONPATH=str(SOURCE), **here)
    used = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert used.stdout.strip() == "0", "a call after the warm-up still compiled"


def test_a_warm_layer_of_conv_compiles_nothing_more(tmp_path: Path):
    """The specs of conv are whole layers: their kernels are those that a call and a plan of the layer take."""
    code = (
        "import numpy as np, numbaprims; from numbaprims import kernel_cache; from numbaprims.cpu import warm\n"
        "spec, = [s for s in warm.specs(['conv']) if s[1] == ('forward', 64, 1, 28, 8, 5, 1, 2, 1)]\n"
        "warm.compile_spec(spec); before = kernel_cache.statistics()['misses']\n"
        "x, w = np.ones((64, 1, 28, 28), np.float32), np.ones((8, 1, 5, 5), np.float32)\n"
        "numbaprims.conv(x, w, padding=2); numbaprims.conv.plan(x.shape, w, padding=2)(x)\n"
        "print(before, kernel_cache.statistics()['misses'] - before)"
    )
    env = dict(os.environ, PYTHONPATH=str(SOURCE), NUMBAPRIMS_CACHE_DIR=str(tmp_path))
    used = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    compiled, more = map(int, used.stdout.split())
    assert compiled > 2 and more == 0


def test_warmup_refuses_an_unknown_stem():
    done = command("warmup", "gem")
    assert done.returncode == 2
    assert "'gem'" in done.stderr and "gemm" in done.stderr


def test_warm_specs_name_factories():
    from numbaprims.cpu import warm

    for stem in warm.STEMS:
        specs = warm.specs([stem])
        assert len(specs) > 2, f"{stem} names no kernel of its own"
        assert len(specs) == len(set(specs))
        for path, arguments in specs:
            module, factory = path.split(":")
            assert callable(getattr(importlib.import_module(module), factory)), path
            json.dumps(arguments)  # plain values: they cross to another process, and into a cache key
