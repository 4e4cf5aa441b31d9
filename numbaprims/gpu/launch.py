"""Launchers: what a GPU solver's `bind` returns; calling one starts the kernels of a problem on the caller's stream.

A launcher allocates nothing but scratch memory, from the caller's library and in the order of its stream, and waits
for nothing, so that a call with `out` can be captured in a CUDA graph once its kernels are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numbaprims.gpu import driver as seam
from numbaprims.gpu.jit import GpuKernel

#: (arrays, floats, scratch) -> the values of a kernel's parameters.  `arrays` are the seven or more of a launch, each
#: a view with `pointer` or None; `floats` are its six; `scratch` is the address of the scratch memory, 0 without.
Values = Callable[[tuple[Any, ...], tuple[float, ...], int], tuple[Any, ...]]


class Step(NamedTuple):
    """One kernel of a problem; steps run one after another."""

    kernel: GpuKernel
    grid: tuple[int, int, int]
    values: Values


def step(kernel: GpuKernel, grid: int | tuple[int, ...], values: Values) -> Step:
    """A step whose grid may be given short: ``step(kernel, 128, values)``."""
    x, y, z = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1, 1)[:3]
    if not (0 < x < 1 << 31 and 0 < y < 1 << 16 and 0 < z < 1 << 16):
        raise ValueError(f"kernel {kernel.name}: a grid of {x} x {y} x {z} blocks is none that a GPU takes")
    return Step(kernel, (x, y, z), values)


def make_launcher(steps: Sequence[Step], *, scratch: int = 0) -> Callable[..., None]:
    """A function `launch(array0, ..., array6, f0, ..., f5, more=())`, as a CPU launcher is; the first array is written.

    `more` are the arrays after the seventh.

    `scratch` is bytes of memory for the steps' own use; it holds whatever was there.  The kernels are compiled now,
    and loaded at the first call on a device.
    """
    if len(steps) == 1 and not scratch:
        return _one(steps[0])
    fixed = tuple(steps)

    def launch(  # type: ignore[no-untyped-def]
        a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0,
        more=(),
    ):  # fmt: skip
        library = a0.origin
        driver = seam.current(library.index)
        stream = library.stream()
        given, floats = (a0, a1, a2, a3, a4, a5, a6, *more), (f0, f1, f2, f3, f4, f5)
        # the library gives the memory back in the order of its stream, so it may go when all is launched
        address, owner = library.scratch(scratch) if scratch else (0, None)
        for kernel, grid, values in fixed:
            driver.launch(
                kernel.loaded(driver), grid, kernel.block, kernel.shared, stream, kernel.kinds,
                values(given, floats, address),
            )  # fmt: skip
        del owner

    launch.steps = fixed  # type: ignore[attr-defined]
    return launch


def _one(only: Step) -> Callable[..., None]:
    """The launcher of a single kernel without scratch memory."""
    kernel, grid, values = only
    block, shared, kinds, loaded = kernel.block, kernel.shared, kernel.kinds, kernel.loaded
    current = seam.current

    def launch(  # type: ignore[no-untyped-def]
        a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0,
        more=(),
    ):  # fmt: skip
        library = a0.origin
        driver = current(library.index)
        driver.launch(
            loaded(driver), grid, block, shared, library.stream(), kinds,
            values((a0, a1, a2, a3, a4, a5, a6, *more), (f0, f1, f2, f3, f4, f5), 0),
        )  # fmt: skip

    launch.steps = (only,)  # type: ignore[attr-defined]
    return launch


def aligned(nbytes: int, *views: Any) -> bool:
    """Whether the first elements of all views (None aside) lie at multiples of `nbytes`, a power of two."""
    address = 0
    for view in views:
        if view is not None:
            address |= view.pointer
    return not address & (nbytes - 1)
