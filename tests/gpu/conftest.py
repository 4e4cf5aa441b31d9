"""What the tests of the GPU half share: an emulated GPU, and ger by the toy solver."""

import functools
import types
from collections.abc import Iterator

import pytest


@functools.cache
def machines_gpu():
    """The machine's GPU in the emulator's place: what is launched is recorded; what only an emulator can tell is not
    asked of it."""
    from ptx_emulator.driver import Launched

    from numbaprims.gpu.cuda_driver import CudaDriver

    class Recording(CudaDriver):
        def __init__(self):
            self.launches, self.entries = [], {}
            super().__init__()

        def load(self, ptx, cubin, entry, shared):
            function = super().load(ptx, cubin, entry, shared)
            self.entries[int(function)] = entry
            return function

        def launch(self, function, grid, block, shared, *more, **words):
            self.launches.append(Launched(self.entries[int(function)], grid, block, shared))
            super().launch(function, grid, block, shared, *more, **words)

        def native(self):
            return None  # it would launch past us

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            pytest.skip(f"asks the emulator for {name}")

    return Recording()


@pytest.fixture(autouse=True)
def host_arrays_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Here tests say themselves what goes to the device, whatever --device says."""
    from numbaprims import settings

    settings.set_defaults(device="auto")
    yield
    chosen = request.config.option.device
    settings.set_defaults(device="auto" if chosen == "cpu" else chosen)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator:
    """An emulated GPU in the place of the machine's, or with --device cuda that one: records what is launched."""
    from ptx_emulator.driver import EmulatedDriver

    from numbaprims.gpu import driver

    here = machines_gpu() if request.config.option.device == "cuda" else EmulatedDriver()
    here.launches.clear()
    with driver.use(here):
        yield here


@pytest.fixture
def toy_ger(monkeypatch: pytest.MonkeyPatch):
    """`ger` with the toy solver alone."""
    from gpu import toy

    from numbaprims.dispatch import registry

    real = registry._stem
    module = types.SimpleNamespace(SOLVERS=toy.SOLVERS)
    monkeypatch.setattr(
        registry, "_stem", lambda stem, kind: module if (stem, kind) == ("ger", "gpu") else real(stem, kind)
    )
    from numbaprims.ops import ger

    ger._ger._launchers.clear()
    yield toy.SOLVERS[0]
    ger._ger._launchers.clear()
