"""Programs: what a GPU solver runs, as data that can be printed; and their launchers, which `bind` returns.

A program is steps, one after another, and *regions* of scratch memory by name.  A step is a kernel, a launcher of
another program (gemm's, say) over regions and parts of the call's arrays, or a loop of such steps.

A launcher allocates nothing but scratch memory, from the caller's library and in the order of its stream, and waits
for nothing, so that a call with `out` can be captured in a CUDA graph once its kernels are loaded.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from numbaprims.gpu import driver as devices
from numbaprims.gpu.jit import GpuKernel

#: The addresses of a program's regions.
Addresses = Mapping[str, int]
#: (arrays, floats, addresses) -> the values of a kernel's parameters.  `arrays` are the seven or more of a launch, each
#: a view with `pointer` or None; `floats` are its six.
Values = Callable[[tuple[Any, ...], tuple[float, ...], Addresses], tuple[Any, ...]]
REGION = 256
"""Bytes that regions begin at multiples of."""


def starter(library: Any, kernel: GpuKernel, grid: tuple[int, int, int]) -> Callable[..., None]:
    """``start(values, together=False)``: what launches a kernel on the device of a library, on the call's stream."""
    noting = library.starter
    if noting is not None:  # a recording's
        return noting(kernel, grid)
    driver = devices.current(library.index)
    return functools.partial(
        driver.launch, kernel.loaded(driver), grid, kernel.block, kernel.shared, library.stream(), kernel.kinds
    )


class Step(NamedTuple):
    """One kernel."""

    kernel: GpuKernel
    grid: tuple[int, int, int]
    values: Values

    def start(self, library: Any, arrays: tuple[Any, ...], floats: tuple[float, ...], addresses: Addresses) -> None:
        """Launch it."""
        starter(library, self.kernel, self.grid)(self.values(arrays, floats, addresses))


class Together(NamedTuple):
    """One kernel whose blocks wait for one another; there must be no more than the device runs at a time."""

    step: Step

    def start(self, library: Any, arrays: tuple[Any, ...], floats: tuple[float, ...], addresses: Addresses) -> None:
        """Launch it."""
        kernel, grid, values = self.step
        starter(library, kernel, grid)(values(arrays, floats, addresses), True)


class Part(NamedTuple):
    """What a launcher inside of a program gets as an array: bytes `offset` behind the beginning of a region, or of the
    array at a place of the call."""

    of: str | int
    offset: int = 0


class Memory(NamedTuple):
    """It at a call, as far as launchers of kernels look."""

    origin: Any
    pointer: int


class Nested(NamedTuple):
    """A launcher inside of a program."""

    launch: Callable[..., None]
    parts: tuple[Part | None, ...]
    """Its arrays; one that the call lacks is None to it, too."""
    floats: tuple[float, ...] | None = None
    """None: those of the call."""

    def start(self, library: Any, arrays: tuple[Any, ...], floats: tuple[float, ...], addresses: Addresses) -> None:
        """Launch it."""
        self.ready(library, arrays, floats, addresses)()

    def ready(
        self, library: Any, arrays: tuple[Any, ...], floats: tuple[float, ...], addresses: Addresses
    ) -> Callable[[], None]:
        """What launches it, its arrays and floats given."""
        given: list[Memory | None] = []
        for part in self.parts:
            if part is None:
                given.append(None)
            elif isinstance(part.of, str):
                given.append(Memory(library, addresses[part.of] + part.offset))
            else:
                view = arrays[part.of]
                given.append(None if view is None else Memory(library, view.pointer + part.offset))
        given += [None] * (7 - len(given))
        floats = floats if self.floats is None else self.floats
        more = {"more": given[7:]} if given[7:] else {}
        return functools.partial(self.launch, *given[:7], *floats, **more)


class Loop(NamedTuple):
    """Steps that are repeated, a time loop; the last parameter of its kernels is the number of the repetition, an int32
    that `values` leaves out.  All other values are made once."""

    steps: tuple[Step | Nested, ...]
    times: int

    def start(self, library: Any, arrays: tuple[Any, ...], floats: tuple[float, ...], addresses: Addresses) -> None:
        """Launch them all."""
        ready: list[tuple[Callable[..., None], tuple[Any, ...] | None]] = []
        for one in self.steps:
            if isinstance(one, Step):
                ready.append((starter(library, one.kernel, one.grid), one.values(arrays, floats, addresses)))
            else:
                ready.append((one.ready(library, arrays, floats, addresses), None))
        for number in range(self.times):
            for launch, fixed in ready:
                if fixed is None:
                    launch()
                else:
                    launch((*fixed, number))


class Program:
    """Steps, and bytes of regions by name, which hold whatever was there."""

    def __init__(
        self, steps: Sequence[Step | Nested | Loop | Together], regions: Mapping[str, int] | None = None
    ) -> None:
        self.steps = tuple(steps)
        self.regions = dict(regions or {})
        self.offsets: dict[str, int] = {}
        """Of the regions, behind the beginning of the scratch memory."""
        self.own = 0
        """Bytes of all regions."""
        for name, nbytes in self.regions.items():
            self.offsets[name] = -(-self.own // REGION) * REGION
            self.own = self.offsets[name] + nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of scratch memory, with what the launchers inside ask for besides, one after another."""
        flat = (each for one in self.steps for each in (one.steps if isinstance(one, Loop) else (one,)))
        inside = (program_of(one.launch).nbytes for one in flat if isinstance(one, Nested))
        return self.own + max(inside, default=0)

    def launcher(self) -> Callable[..., None]:
        """A function `launch(array0, ..., array6, f0, ..., f5, more=())`, as a CPU launcher is; the first array is
        written, `more` are those after the seventh.  Kernels are loaded at the first call on a device."""
        if len(self.steps) == 1 and not self.regions and isinstance(self.steps[0], Step):
            return _one(self, self.steps[0])
        fixed, nbytes, offsets = self.steps, self.own, tuple(self.offsets.items())

        def launch(  # type: ignore[no-untyped-def]
            a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0,
            more=(),
        ):  # fmt: skip
            library = a0.origin
            given, floats = (a0, a1, a2, a3, a4, a5, a6, *more), (f0, f1, f2, f3, f4, f5)
            # the library gives the memory back in the order of its stream, so it may go when all is launched
            begin, owner = library.scratch(nbytes) if nbytes else (0, None)
            addresses = {name: begin + offset for name, offset in offsets}
            for one in fixed:
                one.start(library, given, floats, addresses)
            del owner

        launch.program = self  # type: ignore[attr-defined]
        return launch

    def __str__(self) -> str:
        lines = []
        for one in self.steps:
            if isinstance(one, Together):
                one = one.step
            if isinstance(one, Loop):
                lines += [f"{one.times} times:", textwrap.indent(str(Program(one.steps)), "  ")]
            elif isinstance(one, Step):
                blocks = " x ".join(str(n) for n in one.grid if n > 1) or "1"
                lines.append(f"{one.kernel.name}: {blocks} blocks of {one.kernel.threads} threads")
            else:
                parts = (f"array {x.of}" if isinstance(x.of, int) else x.of for x in one.parts if x is not None)
                lines.append(f"into {', of '.join([next(parts), ', '.join(parts)])}:")
                lines.append(textwrap.indent(str(program_of(one.launch)), "  "))
        lines += [f"scratch: {nbytes} bytes for {name}" for name, nbytes in self.regions.items()]
        return "\n".join(lines)


def step(kernel: GpuKernel, grid: int | tuple[int, ...], values: Values) -> Step:
    """A step whose grid may be given short: ``step(kernel, 128, values)``."""
    x, y, z = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1, 1)[:3]
    if not (0 < x < 1 << 31 and 0 < y < 1 << 16 and 0 < z < 1 << 16):
        raise ValueError(f"kernel {kernel.name}: a grid of {x} x {y} x {z} blocks is none that a GPU takes")
    return Step(kernel, (x, y, z), values)


def make_launcher(
    steps: Sequence[Step | Nested | Loop], regions: Mapping[str, int] | None = None
) -> Callable[..., None]:
    """The launcher of a program."""
    return Program(steps, regions).launcher()


def program_of(launch: Any) -> Program:
    """What a solver's launcher runs; of one that chooses by how a call's arrays are aligned, for those that are."""
    found = launch.program
    return found if isinstance(found, Program) else found()


def _one(program: Program, only: Step) -> Callable[..., None]:
    """The launcher of a single kernel without scratch memory."""
    kernel, grid, values = only
    none = program.offsets

    def launch(  # type: ignore[no-untyped-def]
        a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0,
        more=(),
    ):  # fmt: skip
        given, floats = (a0, a1, a2, a3, a4, a5, a6, *more), (f0, f1, f2, f3, f4, f5)
        starter(a0.origin, kernel, grid)(values(given, floats, none))

    launch.program = program  # type: ignore[attr-defined]
    return launch


def aligned(nbytes: int, *views: Any) -> bool:
    """Whether the first elements of all views (None aside) lie at multiples of `nbytes`, a power of two."""
    address = 0
    for view in views:
        if view is not None:
            address |= view.pointer
    return not address & (nbytes - 1)


def by_alignment(make: Callable[[bool], Callable[..., None]], nbytes: Mapping[int, int]) -> Callable[..., None]:
    """The launcher `make(True)` where the arrays of a call, by their places, begin at multiples of so many bytes, else
    `make(False)`."""
    make = functools.cache(make)
    wide, needs = make(True), tuple(nbytes.items())

    def launch(*arrays, more=(), **floats):  # type: ignore[no-untyped-def]
        given = (*arrays[:7], *(None,) * (7 - len(arrays)), *more)
        whole = all(aligned(least, given[place]) for place, least in needs)
        (wide if whole else make(False))(*arrays, more=more, **floats)

    launch.program = wide.program  # type: ignore[attr-defined]
    return launch
