"""Launch a kernel on NumPy arrays: translate its PTX (once), run its blocks in batches, copy the arrays back."""

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import errors
from .dtypes import NUMPY, Array, width
from .machine import ALL_CHECKS, Batch, Checks, Dim3, Launch, Program
from .memory import GlobalMemory
from .parse import Function, Module, parse
from .races import GlobalRaces
from .tensor_map import encode
from .translate import translate

# Threads that run at a time: enough to hide Python's cost per instruction, few enough to stay in the caches.
BATCH_THREADS = 8192


@dataclass(frozen=True)
class Tiled:
    """An argument of `launch`: the address of a tensor map (TMA) over a C-contiguous array; `box` in NumPy's order."""

    array: Array
    box: tuple[int, ...]
    swizzle: int = 0

    def place(self, memory: GlobalMemory, label: str) -> tuple[int, int]:
        """Addresses of the array's copy and of the map."""
        data = memory.allocate(self.array.nbytes, label, np.ascontiguousarray(self.array))
        strides = tuple(np.cumprod((self.array.itemsize, *self.array.shape[:0:-1]))[1:].tolist())
        raw = encode(data, self.array.itemsize, self.array.shape[::-1], strides, self.box[::-1], self.swizzle)
        return data, memory.allocate(128, f"the tensor map of {label}", raw)


@functools.lru_cache(maxsize=256)
def load(ptx: str, entry: str | None = None) -> tuple[Module, Program]:
    """Parse and translate; kept by the text."""
    module = parse(ptx)
    return module, translate(module, entry)


def dimensions(size: int | Sequence[int]) -> Dim3:
    sizes = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    x, y, z = (*(int(extent) for extent in sizes), 1, 1, 1)[:3]
    return x, y, z


def allocate_variables(module: Module, program: Program, memory: GlobalMemory) -> dict[str, int]:
    """Addresses of the global and constant variables that the kernel names, filled with their initial values."""
    return {
        v.name: memory.allocate(
            max(v.nbytes, 1), v.name, (v.data or b"").ljust(max(v.nbytes, 1), b"\0"), max(v.align, 16)
        )
        for v in module.variables.values()
        if v.name in program.variables
    }


def parameter_block(function: Function, values: Sequence[Any]) -> Array:
    """The kernel's arguments as bytes, each at its offset."""
    if len(values) != len(function.parameters):
        raise TypeError(f"{function.name} has {len(function.parameters)} parameters, {len(values)} were given")
    block: Array = np.zeros(sum(p.nbytes + p.align for p in function.parameters) or 1, np.uint8)
    top = 0
    for parameter, value in zip(function.parameters, values, strict=True):
        top = -(-top // parameter.align) * parameter.align
        if isinstance(value, (bytes, bytearray, ctypes.Structure)):
            raw = np.frombuffer(bytes(value), np.uint8)
            if len(raw) != parameter.nbytes:
                raise TypeError(f"{len(raw)} bytes for parameter {parameter.name} of {parameter.nbytes}")
        elif isinstance(value, (float, np.floating)):
            kind = {2: np.float16, 4: np.float32, 8: np.float64}[width(parameter.type)]
            raw = np.array([value], kind).view(np.uint8)
        else:
            bits = 8 * parameter.nbytes
            raw = np.frombuffer((int(value) & ((1 << bits) - 1)).to_bytes(parameter.nbytes, "little"), np.uint8)
            if parameter.type in ("f32", "f64", "f16"):
                raw = np.array([value], NUMPY[parameter.type]).view(np.uint8)
        block[top : top + len(raw)] = raw
        top += parameter.nbytes
    return block


def run(
    program: Program,
    memory: GlobalMemory,
    grid: Dim3,
    block: Dim3,
    shared: int,
    parameters: Array,
    variables: dict[str, int],
    *,
    checks: Checks = ALL_CHECKS,
    order: str = "lowest",
    seed: int = 0,
    batch_threads: int = BATCH_THREADS,
    worst_approximations: bool = False,
    max_shared: int = 227 * 1024,
    together: bool = False,
    only: int | None = None,
) -> Launch:
    """Run every block of a launch, or the one whose number is `only`; `together` all at a time, so that they may wait
    for one another."""
    blocks, threads = int(np.prod(grid)), int(np.prod(block))
    if not 1 <= threads <= 1024:
        raise ValueError(f"{threads} threads a block; 1 to 1024 are allowed")
    if grid[1] > 65535 or grid[2] > 65535 or grid[0] > 2**31 - 1 or min(grid) < 1:
        raise ValueError(f"grid {grid} is not allowed")
    if order not in ("lowest", "random"):
        raise ValueError(f"order {order!r}: lowest and random are known")
    used = int(program.shared_layout(shared).valid.sum())
    if used > max_shared:
        raise ValueError(f"a block wants {used} bytes of shared memory, the device has {max_shared}")
    padded = -(-threads // 32) * 32
    races = None
    if checks.global_races:
        races = GlobalRaces(len(memory.bytes), program.global_granule, blocks, padded)
    launch = Launch(
        program, memory, grid, block, shared, parameters, variables, checks, order, np.random.default_rng(seed), races,
        worst_approximations,
    )  # fmt: skip
    if only is not None:
        Batch(launch, only, 1).run()
        return launch
    at_once = blocks if together else max(1, batch_threads // padded)
    for first in range(0, blocks, at_once):
        Batch(launch, first, min(at_once, blocks - first)).run()
    return launch


def launch(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    *arguments: Any,
    shared: int | None = None,
    arch: str = "sm_80",
    entry: str | None = None,
    uninitialised: Sequence[int] = (),
    **options: Any,
) -> Launch:
    """Run a kernel on NumPy arrays, which are updated in place.

    Args:
        kernel: a `GpuKernel`, or PTX text.
        grid, block: blocks, and threads of a block: an int, or up to three.
        arguments: an array stands for a pointer to a copy of it, with its exact bounds; numbers are scalars;
            `Tiled` stands for the address of a tensor map.
        shared: bytes of dynamic shared memory; a `GpuKernel` knows its own.
        arch: what a `GpuKernel` is compiled for.
        uninitialised: positions of arrays whose contents the kernel must not read before it has written them.
        options: checks, order, seed, batch_threads, worst_approximations, together, only: see `run`.

    Raises:
        EmulatorError: what the kernel did wrong, with block, thread and PTX line.
    """
    if isinstance(kernel, str):
        ptx, name, dynamic = kernel, entry, shared or 0
    else:
        ptx, name, dynamic = kernel.ptx(arch), kernel.entry, kernel.shared if shared is None else shared
    module, program = load(ptx, name)
    function = module.entry(name)
    memory = GlobalMemory()
    values: list[Any] = []
    arrays: list[tuple[Array, int]] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            data = None if position in uninitialised else np.ascontiguousarray(argument)
            address = memory.allocate(argument.nbytes, f"argument {position}", data)
            arrays.append((argument, address))
            values.append(address)
        elif isinstance(argument, Tiled):
            address, tensor_map = argument.place(memory, f"argument {position}")
            arrays.append((argument.array, address))
            values.append(tensor_map)
        else:
            values.append(argument)
    variables = allocate_variables(module, program, memory)
    done = run(
        program,
        memory,
        dimensions(grid),
        dimensions(block),
        dynamic,
        parameter_block(function, values),
        variables,
        **options,
    )
    for array, address in arrays:
        if array.flags.writeable and array.nbytes:
            array[...] = memory.read(address, array.nbytes).view(array.dtype).reshape(array.shape)
    return done


def error_of(function: Callable[[], Any]) -> errors.EmulatorError | None:
    """The error that a launch ends with, or None."""
    try:
        function()
    except errors.EmulatorError as error:
        return error
    return None
