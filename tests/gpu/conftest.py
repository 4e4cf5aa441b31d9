"""What the tests of the GPU half share: an emulated GPU, and ger by the toy solver."""

import types
from collections.abc import Iterator

import pytest


@pytest.fixture
def gpu() -> Iterator:
    """An emulated GPU in the place of the machine's: records what is launched."""
    from ptx_emulator.driver import EmulatedDriver

    from numbaprims.gpu import driver

    emulated = EmulatedDriver()
    with driver.use(emulated):
        yield emulated


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
