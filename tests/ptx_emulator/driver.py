"""The emulator behind the library's driver seam: the same tests and the same calls, without a GPU.

    from numbaprims.gpu import driver
    with driver.use(EmulatedDriver()):
        numbaprims.gemm(a, b, device="cuda")

Everything happens at once, in the order of the calls; streams are accepted and mean nothing. What a kernel does wrong
is raised by `launch`, not later.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numbaprims.gpu.driver import Driver
from numbaprims.gpu.seam import Native
from numbaprims.gpu.target import H200, GpuTarget

from . import tensor_map
from .dtypes import Array
from .launch import allocate_variables, load, parameter_block, run
from .machine import ALL_CHECKS, Checks, Dim3, Program
from .memory import GlobalMemory
from .native import NativeSide
from .parse import Module


@dataclass(frozen=True)
class LoadedKernel:
    """What `load` gives and `launch` takes; `int(kernel)` is what native code launches."""

    entry: str
    module: Module
    program: Program
    variables: dict[str, int]
    dynamic_shared: int
    number: int

    def __int__(self) -> int:
        return self.number


class Launched(NamedTuple):
    """One launch, for tests that ask what has run."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int


class EmulatedDriver(Driver):
    """One emulated device; `options` are those of `ptx_emulator.launch.run` (checks, order, seed, ...)."""

    kind = "emulated"

    def __init__(self, target: GpuTarget = H200, device: int = 0, checks: Checks = ALL_CHECKS, **options: Any) -> None:
        self.target, self.device = target, device
        self.options = {"checks": checks, **options}
        self.memory = GlobalMemory()
        self._lock = threading.RLock()  # calls may come from any thread; they take turns
        self.launches: list[Launched] = []
        self.kernels: list[LoadedKernel] = []
        self._native: NativeSide | None = None
        self.steps = 0  # basic blocks run so far
        self.lines: dict[str, set[int]] = {}  # of each kernel's PTX, those that have been executed

    def load(self, ptx: str, cubin: bytes, entry: str, dynamic_shared: int) -> LoadedKernel:
        if dynamic_shared > self.target.shared_per_block:
            raise ValueError(f"{entry} wants {dynamic_shared} bytes of shared memory, {self.target.name} has fewer")
        with self._lock:
            module, program = load(ptx, entry)
            variables = allocate_variables(module, program, self.memory)
        found = LoadedKernel(entry, module, program, variables, dynamic_shared, len(self.kernels))
        self.kernels.append(found)
        return found

    def launch(
        self,
        function: LoadedKernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        kinds: tuple[str, ...],
        values: tuple[Any, ...],
        together: bool = False,
    ) -> None:
        if shared > max(function.dynamic_shared, 48 * 1024):
            raise ValueError(f"{function.entry} was loaded for {function.dynamic_shared} bytes, not for {shared}")
        if together:  # with as many registers as a block of so many threads may have
            threads = int(np.prod(block))
            registers = min(255, self.target.registers // threads)
            resident = self.target.blocks_per_multiprocessor(threads, registers, shared)
            if np.prod(grid) > resident * self.target.multiprocessors:
                raise ValueError(f"{function.entry}: {self.target.name} does not run {grid} blocks at a time")
        for kind, value in zip(kinds, values, strict=True):
            if kind.startswith("f") != isinstance(value, (float, np.floating)):
                raise TypeError(f"{function.entry}: {value!r} for a parameter of kind {kind}")
        parameters = parameter_block(function.module.entry(function.entry), values)
        with self._lock:
            self._run(function, grid, block, shared, parameters, together)

    def _run(
        self, function: LoadedKernel, grid: Dim3, block: Dim3, shared: int, parameters: Array, together: bool
    ) -> None:
        self.launches.append(Launched(function.entry, grid, block, shared))
        done = run(
            function.program, self.memory, grid, block, shared, parameters, function.variables,
            max_shared=self.target.shared_per_block, together=together, **self.options,
        )  # fmt: skip
        self.steps += done.steps
        for start in done.visited:
            self.lines.setdefault(function.entry, set()).update(function.program.blocks[start].lines)

    def alloc(self, nbytes: int, stream: int) -> int:
        if nbytes < 1:
            raise ValueError(f"alloc of {nbytes} bytes")
        with self._lock:
            return self.memory.allocate(nbytes)

    def free(self, pointer: int, streams: Collection[int]) -> None:
        with self._lock:
            self.memory.free(pointer)

    def copy(self, destination: Any, source: Any, nbytes: int, stream: int) -> None:
        with self._lock:
            self._copy(destination, source, nbytes)

    def _copy(self, destination: Any, source: Any, nbytes: int) -> None:
        data = source if isinstance(source, np.ndarray) else self.memory.read(int(source), nbytes)
        if isinstance(data, np.ndarray) and not data.flags.c_contiguous:
            raise ValueError("a copy takes C-contiguous arrays only")
        raw = np.frombuffer(data, np.uint8, nbytes) if nbytes else np.zeros(0, np.uint8)
        if isinstance(destination, np.ndarray):
            destination.reshape(-1).view(np.uint8)[:nbytes] = raw
        else:
            self.memory.write(int(destination), raw)

    def synchronise(self, stream: int) -> None:
        pass

    def tensor_map(
        self,
        pointer: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
    ) -> np.ndarray:
        item = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "u8": 1}[dtype]
        return tensor_map.encode(pointer, item, shape, strides, box, 128)

    def native(self) -> Native:
        if self._native is None:
            self._native = NativeSide(self)
        return self._native.functions
