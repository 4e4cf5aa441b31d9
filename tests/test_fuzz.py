"""The harness itself: it finds what is planted, and a short run of it finds nothing else."""

import argparse
import ctypes
import re
import subprocess
import sys
from pathlib import Path

import fuzz
import numpy as np
import pytest
from fuzzing import run
from fuzzing.guard import Guarded
from helpers import lay_out

from numbaprims.cpu.ger.solvers import Naive
from numbaprims.dispatch import registry

pytestmark = pytest.mark.cpu
HERE = Path(__file__).parent


def died(lines: str) -> bool:
    """Whether a process that touches a Guarded array `g` of 100 floats is ended by a signal."""
    script = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
import ctypes, numpy as np
from fuzzing.guard import Guarded
given = np.arange(100, dtype=np.float32)
{lines}
"""
    code = subprocess.run([sys.executable, "-c", script], capture_output=True).returncode
    assert code <= 0, "the script itself has failed"
    return code < 0


@pytest.mark.parametrize("at_end", [False, True])
def test_a_touch_outside_ends_the_process(at_end):
    make = f"g = Guarded(given, {at_end}, writeable=True).array; at = g.ctypes.data"
    assert not died(f"{make}; g[0] = g[99] = ctypes.c_float.from_address(at + 99 * 4).value")
    past = "at + 400" if at_end else "at - 4"
    assert died(f"{make}; ctypes.c_float.from_address({past}).value")
    assert died(f"{make}; ctypes.c_float.from_address({past}).value = 1")
    assert died(f"g = Guarded(given, {at_end}, writeable=False).array; ctypes.memset(g.ctypes.data, 0, 4)")


@pytest.mark.parametrize("layout", ["C", "F", "negative", "sliced", "padded", "offset", "broadcast", "unaligned"])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1), (0, 3), ()])
def test_the_copy_is_the_array(layout, shape):
    given = lay_out(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape), layout)
    for at_end in (False, True):
        guarded = Guarded(given, at_end, writeable=layout != "broadcast")
        assert guarded.array.strides == given.strides or not given.size
        np.testing.assert_array_equal(guarded.array, given)
        assert guarded.strays() == 0
        if layout == "broadcast":
            continue
        guarded.array[...] = 7
        assert guarded.strays() == 0
        if layout in ("sliced", "padded") and given.ndim > 1 and given.size > 1:
            ctypes.memset(guarded.array.ctypes.data + guarded.array.itemsize * guarded.array.shape[-1], 0, 1)
            assert guarded.strays() == (1 if layout == "padded" else guarded.strays()) > 0


class _Planted(Naive):
    """A solver of ger that leaves out, adds, or touches what it should not."""

    def __init__(self, fault: str) -> None:
        self.name = self.fault = fault

    def bind(self, problem, target, config):
        launch = super().bind(problem, target, config)

        def wrong(out, x, y, *more, **floats):
            last = out[-1, -1].copy()
            launch(out, x, y, *more, **floats)
            if self.fault == "leaves_out":
                out[-1, -1] = last
            elif self.fault == "off_by_one":
                out[0, 0] = out[0, 0] + out.dtype.type(1)
            elif self.fault == "strays" and out.strides[-1] > out.itemsize and out.shape[-1] > 1:
                ctypes.memset(out.ctypes.data + out.itemsize, 0, 1)

        return wrong


@pytest.mark.parametrize("fault", ["leaves_out", "off_by_one", "strays"])
def test_planted_faults_are_found(fault):
    registry.register("ger", _Planted(fault))
    try:
        found = []
        for index in range(60):
            call, source = run.draw("ger", 0, index)
            found += [(way, what) for way, what in run.check(call, source, lambda way: None, fault)]
        assert found and all(way == fault and "TypeError" not in what for way, what in found)
        assert any("bytes beside" in what for _, what in found) == (fault == "strays")
    finally:
        registry.unregister("ger", fault)


def test_draws_repeat_and_differ():
    for stem in run.DRAWS:
        first, again, other = (str(run.draw(stem, 3, index)[0]) for index in (5, 5, 6))
        assert first == again != other


def test_a_child_that_dies_is_told_of(monkeypatch, capsys):
    """The case is named, and the next child goes on behind it."""
    dying = "import os,sys,json; open(sys.argv[1],'r+').write(json.dumps([41,'rows'])); os.abort()"
    ending = "import json; print(json.dumps({'cases': 2, 'made': 9}))"
    scripts, begun, real = iter([dying, ending]), [], subprocess.Popen

    def popen(command, **options):
        begun.append(int(command[command.index("--child") + 1]))
        return real([sys.executable, "-c", next(scripts), command[-1]], **options)

    monkeypatch.setattr(fuzz.subprocess, "Popen", popen)
    options = argparse.Namespace(seed=7, device="cpu", case=None, way=None)
    assert fuzz.watch("ger", options, 40, float("inf")) == (4, 9, 1)
    assert begun == [40, 42]
    told = capsys.readouterr().out
    assert told.startswith("python tests/fuzz.py --case ger:7:41 --way 'rows'") and "ended with -6" in told


def test_a_short_run_finds_nothing():
    words = "--seconds 6 --seed 11 --stem ger --stem gemv".split()
    command = [sys.executable, str(HERE / "fuzz.py"), *words]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = [re.fullmatch(r"(\w+): (\d+) cases, (\d+) calls, 0 findings", line) for line in ended.stdout.splitlines()]
    assert [count[1] for count in counts] == ["ger", "gemv"]
    assert all(int(count[3]) > int(count[2]) > 0 for count in counts)


def test_one_case_again():
    command = [sys.executable, str(HERE / "fuzz.py"), "--case", "ger:1:3", "--way", "naive"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0 and "ger: 1 cases, 1 calls, 0 findings" in ended.stdout, ended.stdout + ended.stderr
