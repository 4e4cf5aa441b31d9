"""A directory of the kernel cache for one test, and a kernel to be kept there."""

import warnings
from pathlib import Path

from numba import types
from numba.core.ccallback import CFunc

from numbaprims import kernel_cache, kernel_files

SIGNATURE = types.int64(types.int64)


class Disk:
    """A cache directory of one test, and what the cache warned of."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "kernels"
        self.warned: list[str] = []

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.npk"))

    def use(self, scale: int = 3) -> str:
        """Compile or load a kernel, check what it computes, and say which of the two happened."""
        before = kernel_cache.statistics()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kernel = make(scale)
            with kernel_cache.compile_lock(kernel._cache):
                kernel.compile()
        assert kernel.ctypes(5) == 5 * scale
        self.warned = [str(w.message) for w in caught]
        after = kernel_cache.statistics()
        done = [name for name in ("hits", "saves") if after[name] > before[name]]
        return " ".join(done) or "compiled"


def make(scale: int) -> CFunc:
    def times(x):
        return x * scale

    times.__name__ = times.__qualname__ = f"times_{scale}"
    kernel = CFunc(times, (SIGNATURE.args, SIGNATURE.return_type), {}, {})
    kernel._cache = kernel_cache.CodeCache(times, "times", (scale,), {})
    return kernel


def look_again() -> None:
    """As a new process would: directories are looked at once."""
    kernel_files.place.cache_clear()
    kernel_files._trust.cache_clear()
