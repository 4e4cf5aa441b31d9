"""`numbaprims bench --device cuda`, played on an emulated device: the road, not the numbers."""

import argparse
import json
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest

from numbaprims.bench import command, gpu as bench, operands, rivals, targets
from numbaprims.bench.cases import OURS, STEMS, Case, stem_module
from numbaprims.bench.runner import check_contenders, run_case
from numbaprims.bench.stems import gemv, ger
from numbaprims.tuning.timing import Schedule

QUICK = Schedule(block=2e-3, settle=1e-3, rounds=2, min_rounds=1, time_limit=0.2)


@pytest.fixture
def only_ours(monkeypatch):
    """torch without CUDA can't take part."""
    for stem in (ger, gemv):
        monkeypatch.setattr(stem.rivals, "load_rival", lambda name: None)


def test_a_case_is_measured_on_the_device(gpu, toy_ger, only_ours):
    case = Case("ger", "given", (("m", 12), ("n", 70)))
    with operands.on_gpu(gpu):
        record = run_case(case, 1, bench.GpuRoofline(gpu), QUICK, memory=1e9, clock=gpu.clock())
    assert "error" not in record and record["solver"] == "toy" and record["seconds"] > 0
    assert gpu.launches and record["roof"]["bound"] == "update" and 0 < record["roof"]["percent"] < 1e6
    assert operands.on_host()


def test_a_wrong_result_is_not_timed(gpu, toy_ger, only_ours, monkeypatch):
    monkeypatch.setattr(gpu, "launch", lambda *_: None)
    with operands.on_gpu(gpu):
        work = ger.workload(Case("ger", "given", (("m", 5), ("n", 6))), 1)
        assert "nothing was added" in check_contenders(work)[OURS] or "off by" in check_contenders(work)[OURS]


@pytest.mark.parametrize("stem", STEMS)
def test_every_stem_has_operands_on_the_device(gpu, monkeypatch, stem):
    monkeypatch.setattr(gpu, "launch", lambda *_: None)
    monkeypatch.setattr(rivals, "load_rival", lambda name: None)
    words = argparse.ArgumentParser()
    command.add_arguments(words)
    given = words.parse_args([stem, "--shapes", "1x4x9x8x6x3x3" if stem == "conv" else "quick"])
    case = stem_module(stem).cases(given)[0]
    with operands.on_gpu(gpu):
        stem_module(stem).workload(case, 1).contenders[OURS].call()


def test_operands_lie_on_the_device(gpu):
    with operands.on_gpu(gpu):
        x = operands.Operand.of(np.arange(4, dtype=np.float32), "bf16")
        y = operands.Operand.empty((4,), "f32")
    assert x.ours.dtype.name == "bfloat16" and np.array_equal(x.values(), [0, 1, 2, 3])
    assert np.isnan(y.values()).all()
    y.set(np.ones(4, np.float32))
    assert np.array_equal(y.there.to_host(), np.ones(4)) and np.array_equal(y.values(), np.ones(4))
    operands.spoil(y.storage)
    assert np.isnan(y.there.to_host()).all()


def test_roofs(gpu):
    roofline = bench.GpuRoofline(gpu)
    peak = roofline.probe("fma", "bf16", 0)
    assert peak.amount == gpu.target.peak("bf16") and peak.call is None
    copy = roofline.probe("read", "f32", 1 << 12)
    copy.call()
    assert copy.amount == 1 << 12


def test_goals_of_a_gpu_are_its_own():
    record = {
        "stem": "gemm", "suite": "square", "dtype": "f32", "sizes": {"n": 1024}, "switches": {}, "label": "1024",
        "threads": 1, "device": "H200", "rivals": {"torch": {"speedup": 0.8}}, "bytes": 1,
    }  # fmt: skip
    (row,) = targets.summarise([record])
    assert row["name"].endswith("over cuBLAS") and row["verdict"] == "floor"


def test_what_is_not_measured_on_a_gpu_is_refused():
    with pytest.raises(ValueError, match="start is measured on the CPU only"):
        bench.run(Namespace(subject="start", device="cuda"), {})


def test_without_a_gpu_the_command_says_so():
    from numbaprims.gpu import driver

    try:
        driver.count()
    except driver.NoGpu:
        done = subprocess.run(
            [sys.executable, "-m", "numbaprims", "bench", "ger", "--quick", "--device", "cuda"],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 2 and "numbaprims bench: --device cuda: no NVIDIA driver" in done.stderr
    else:
        pytest.skip("this machine has a GPU")


def test_info_lists_what_there_is(gpu, capsys):
    from numbaprims.cli import info

    facts = info._gpu()
    assert facts["available"] and facts["why"] is None and facts["compiler"]["nvjitlink"]
    assert facts["devices"][0]["arch"] == "sm_90a" and json.dumps(facts)
    rows = dict(info._gpu_rows(facts))
    assert rows["GPU 0"] == "H200, sm_90a, 132 multiprocessors" and "4.80 TB/s" in rows[""]
