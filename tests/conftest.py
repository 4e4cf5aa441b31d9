"""What every test shares: the device, the seed, the cache of compiled kernels, the Hypothesis profiles."""

import contextlib
import functools
import gc
import importlib.util
import inspect
import os
import random
import tempfile
import time
import zlib
from pathlib import Path

import pytest

# Set before anything imports Numba, which reads them once. Eight threads, so that counts above the
# machine's own can be tested; kernels ask for their count at each call.
os.environ.setdefault("NUMBA_NUM_THREADS", "8")
_kept_cache = os.environ.get("NUMBAPRIMS_TEST_CACHE_DIR")
if "PYTEST_XDIST_WORKER" in os.environ:  # one directory for all processes of a run
    _kept_cache = os.environ["NUMBAPRIMS_CACHE_DIR"]
_session_cache = None if _kept_cache else tempfile.TemporaryDirectory(prefix="numbaprims-test-cache-")
os.environ["NUMBAPRIMS_CACHE_DIR"] = _kept_cache or _session_cache.name
# What a test chooses may not depend on what another one has timed; the tests of the database name one of their own.
os.environ["NUMBAPRIMS_DATABASE"] = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("numbaprims")
    group.addoption("--device", choices=("cpu", "emulated", "cuda"), default="cpu", help="where kernels run")
    group.addoption("--slow", action="store_true", help="also run the tests marked slow")
    group.addoption("--fuzz", action="store_true", help="200 Hypothesis examples a test, a random seed")
    group.addoption("--about", metavar="WORD", help="only tests whose name or source has this word")
    group.addoption("--seed", type=int, default=None, help="seed of `rng` (0; random under --fuzz)")


def pytest_configure(config: pytest.Config) -> None:
    _devices.enter_context(on_device(config.option.device))
    import frames
    from helpers import EMULATED

    if EMULATED:  # where OpenBLAS leaves flags
        config.addinivalue_line("filterwarnings", "ignore:.* encountered in matmul:RuntimeWarning")
    frames.watch()
    fuzz = config.option.fuzz
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(2**32) if fuzz else 0
    from hypothesis import HealthCheck, settings

    # The first example of a test may compile kernels for seconds, so there is no deadline and no "too slow".
    shared = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
    settings.register_profile("ci", max_examples=30, derandomize=True, **shared)
    settings.register_profile("fuzz", max_examples=200, **shared)
    settings.load_profile("fuzz" if fuzz else "ci")


NO_CUDA = None if importlib.util.find_spec("numba_cuda") else "needs numba-cuda: pip install 'numbaprims[cu13]'"
_devices = contextlib.ExitStack()


@contextlib.contextmanager
def on_device(name: str):
    """Let arrays of the host be computed on a GPU, or on an emulated one, by default: every test of a public function
    then runs its kernels there, through the real dispatcher."""
    if name == "cpu":
        yield
        return
    if NO_CUDA:
        pytest.exit(f"--device {name}: {NO_CUDA}", returncode=4)
    from numbaprims import settings
    from numbaprims.gpu import driver

    if name == "emulated":
        from ptx_emulator.driver import EmulatedDriver

        place = driver.use(EmulatedDriver())
    else:
        place = contextlib.nullcontext()
        try:
            driver.current()
        except driver.NoGpu as error:
            pytest.exit(f"--device cuda: {error}", returncode=4)
    with place:
        settings.set_defaults(device=name)
        yield
        settings.set_defaults(device="auto")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the tests of the GPU half where its compiler is not installed; one line at the end says so."""
    gpu = Path(__file__).parent / "gpu"
    return True if NO_CUDA and (collection_path == gpu or gpu in collection_path.parents) else None


def pytest_report_header(config: pytest.Config) -> str:
    option, cache = config.option, os.environ["NUMBAPRIMS_CACHE_DIR"]
    profile = "fuzz" if option.fuzz else "ci"
    return f"numbaprims: device {option.device}, seed {option.seed}, examples {profile}, cache {cache}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NO_CUDA:
        terminalreporter.write_line(f"tests/gpu was left out: it {NO_CUDA}")


def pytest_unconfigure(config: pytest.Config) -> None:
    _devices.close()
    if _session_cache is not None:
        _session_cache.cleanup()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    word = config.option.about
    if word:
        chosen = [item for item in items if word in item.nodeid or word in inspect.getsource(item.function)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
    for item in items:
        if config.option.device != "cpu" and item.get_closest_marker("cpu"):
            item.add_marker(pytest.mark.skip(reason="about the kernels of the CPU"))
        if item.get_closest_marker("slow") and not config.option.slow:
            item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


def pytest_collection_finish() -> None:
    """What has been collected lives to the end: the collector need not walk it again and again, nor all that compiling
    leaves for each 700 objects made, which took 5 % of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    # Numba times LLVM's lock: two events at each of 240 calls of LLVM a kernel, 4 % of what users' functions take
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("llvmlite.binding").ffi.lib._lock._cblist.clear()


#: Seconds of CPU after which a drawn test draws no more: most examples compile kernels of their own.
BUDGET = 3.0
_drawing = {"seconds": 0.0, "failed": False}


class _Spent(pytest.skip.Exception):
    """Ends the drawing: Hypothesis lets skips through, and nothing else that is no failure."""


def _within_budget(test):
    """A drawn test's examples until the budget is spent. A failure, which is drawn again, has no budget."""
    from hypothesis.errors import UnsatisfiedAssumption

    @functools.wraps(test)
    def example(*args, **kwargs):
        began = time.process_time()
        try:
            test(*args, **kwargs)
        except UnsatisfiedAssumption:
            raise
        except Exception:
            _drawing["failed"] = True
            raise
        finally:
            _drawing["seconds"] += time.process_time() - began
        if _drawing["seconds"] > BUDGET and not _drawing["failed"]:
            raise _Spent("no more examples")  # once all has been drawn: fewer draws than before would be an error

    example.budgeted = True
    return example


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function):
    """Calls the test, with room for Python's frames: users' functions are compiled by Numba's own passes."""
    from numbaprims.kernel_passes import with_room

    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with contextlib.suppress(_Spent):
        with_room(pyfuncitem.obj, **given)
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    _drawing.update(seconds=0.0, failed=False)
    drawn = getattr(getattr(item, "function", None), "hypothesis", None)
    if drawn is not None and not item.config.option.fuzz and not hasattr(drawn.inner_test, "budgeted"):
        drawn.inner_test = _within_budget(drawn.inner_test)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.failed and "rng" in getattr(item, "fixturenames", ()):
        again = f"python -m pytest '{item.nodeid}' --seed {item.config.option.seed}"
        report.sections.append(("reproduce", again))
    return report


@pytest.fixture
def as_cpu(monkeypatch):
    """``as_cpu(target)`` estimates and compiles as that CPU would; what was made so is forgotten behind the test."""
    from numbaprims.cpu import target
    from numbaprims.dispatch import registry

    def set_to(machine):
        monkeypatch.setattr(target, "current", lambda: machine)
        registry.calibrated()

    yield set_to
    monkeypatch.undo()
    registry.calibrated()


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """Where the kernels under test run: "cpu", "emulated" or "cuda"."""
    return request.config.option.device


@pytest.fixture
def rng(request: pytest.FixtureRequest):
    """A NumPy generator seeded by --seed and the test's name: tests don't shift each other's draws."""
    import numpy as np

    return np.random.default_rng([request.config.option.seed, zlib.crc32(request.node.name.encode())])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """A client of a dask cluster of two processes on this machine."""
    from numbaprims.cpu import threads

    distributed = pytest.importorskip("distributed", reason="needs dask.distributed: pip install distributed")
    environment = dict(os.environ)
    with (
        distributed.LocalCluster(
            # any port: a second cluster at the same time would warn that the usual one is taken
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0",
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        # to start its workers, dask sets OMP_NUM_THREADS=1 and more in this process too
        os.environ.clear()
        os.environ.update(environment)
        threads._limits.cache_clear()
        threads.default_threads.cache_clear()
        yield client


@pytest.fixture
def disk(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A directory of the kernel cache, in force for one test."""
    from kernel_disk import Disk, look_again

    from numbaprims import kernel_cache, settings

    old = settings._default
    monkeypatch.setattr(kernel_cache, "_warned", set())
    settings.set_defaults(cache_dir=tmp_path)
    look_again()
    yield Disk(tmp_path)
    settings._default = old
    look_again()
