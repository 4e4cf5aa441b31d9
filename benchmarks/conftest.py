"""The cases of `numbaprims bench` as pytest-benchmark: `pytest benchmarks`; every suite: `--shapes all`."""

import argparse
import os
import sys

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("numbaprims")
    group.addoption("--shapes", default="quick", help="suites or shapes, as for `numbaprims bench` (default quick)")
    group.addoption("--dtype", default="f32", help="f32, f64, bf16, f16, int8; several separated by commas")
    group.addoption("--direction", help="conv: forward, data, weight; several separated by commas")
    group.addoption("--threads", type=int, default=1, help="threads of every library (default 1)")


def pytest_configure(config):
    # NumPy, torch and others read these once, when they load.
    from numbaprims.bench import rivals

    capped = rivals.caps(os.environ)
    if capped and {"numpy", "torch"} & sys.modules.keys():
        raise pytest.UsageError(f"unset {', '.join(capped)}: a plugin has loaded a library that reads them")
    for name in capped:
        del os.environ[name]
    os.environ.update(rivals.SETTLED)
    rivals.keep_memory()


def pytest_generate_tests(metafunc):
    if "contender" not in metafunc.fixturenames:
        return
    from numbaprims.bench import cases, command, table

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    option, stem = metafunc.config.option, metafunc.module.STEM
    words = [stem, "--shapes", option.shapes, "--dtype", option.dtype]
    if option.direction:
        words += ["--direction", option.direction]
    found = cases.stem_module(stem).cases(parser.parse_args(words))
    names = (cases.OURS, *table.RIVALS[stem])
    metafunc.parametrize(
        ("case", "contender"),
        [(case, name) for case in found for name in names],
        ids=[f"{case.label} {case.dtype}-{name}" for case in found for name in names],
        indirect=["contender"],
    )


_latest = {}


@pytest.fixture
def contender(request, case):
    """One library's call for a case, its result checked; the test is skipped where it is not installed."""
    from numbaprims.bench import cases, rivals, runner

    threads = request.config.option.threads
    with rivals.limit_threads(threads):
        if _latest.get("case") != case:  # contenders of one case follow one another and share its arrays
            _latest.clear()
            work = cases.stem_module(case.stem).workload(case, threads)
            _latest.update(case=case, work=work, refused=runner.check_contenders(work))
        work, refused = _latest["work"], _latest["refused"]
        if request.param not in work.contenders:
            pytest.skip(f"no {request.param} for this case")
        assert request.param not in refused, refused[request.param]
        yield work.contenders[request.param]
