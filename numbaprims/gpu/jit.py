"""The only module that imports numba.cuda: kernels and device functions are declared here, compiled to PTX and from
that PTX to a cubin, for any architecture, without a GPU.

A kernel is the inner function of a factory that closes over numbers, strings and types only::

    @functools.cache
    def make_scale(dtype: str, threads: int) -> GpuKernel:
        T = STORAGE[dtype]
        signature = types.void(types.CPointer(T), types.CPointer(T), types.float32, types.uint32)

        @gpu_kernel("scale", signature, spec=(dtype, threads), threads=threads, registers=16)
        def scale(out, x, alpha, n):
            i = block_index() * types.uint32(threads) + thread_index()
            if i < n:
                out[i] = alpha * x[i]

        return scale

Its arguments are raw pointers and 32-bit scalars: an array of Numba is seven parameters of 64 bits, and its index
arithmetic costs two registers and half of the instructions of a small kernel more.  A launch is one call of the
driver with a tuple of values (`GpuKernel.launch`), since Numba's own costs 30 to 50 us of host time.

The cubin is assembled from the PTX that is kept beside it, without link-time optimisation, which changes no
instruction of a kernel that stands alone.  So what the emulator runs is what the GPU runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

if not hasattr(np, "row_stack"):
    # numba-cuda 0.30 overloads the name, which NumPy 2.5 removed (numba-cuda issue 907, not to be mended there).
    vars(np)["row_stack"] = np.vstack

try:
    from numba import cuda
    from numba.cuda import (
        cudadecl,
        dispatcher as _dispatcher,
        types as _types,
    )
    from numba.cuda.compiler import _compile_pyfunc_with_fixup as _compile  # type: ignore[attr-defined]
    from numba.cuda.core.compiler_lock import global_compiler_lock
    from numba.cuda.descriptor import cuda_target
except ImportError as error:
    raise ImportError(
        f"kernels for GPUs need the package numba-cuda ({error}): pip install 'numbaprims[cu13]', or [cu12]"
    ) from error

from numbaprims import forks, signals
from numbaprims.gpu import driver as devices, seam
from numbaprims.gpu.compiler import kernel_pipeline
from numbaprims.gpu.image import Image, Resources, assemble, image_of

types: Any = _types  # its names are filled in when it is imported, which mypy cannot see

__all__ = [
    "STORAGE",
    "ByValue",
    "GpuKernel",
    "Image",
    "Resources",
    "block_index",
    "block_index_y",
    "block_index_z",
    "block_size",
    "cuda",
    "device_function",
    "gpu_kernel",
    "grid_size",
    "shared_array",
    "thread_index",
    "types",
]

#: Type of the elements in memory, by the name of a dtype; half precisions travel as their bits.
STORAGE: dict[str, Any] = {
    "f64": types.float64, "f32": types.float32, "f16": types.uint16, "bf16": types.uint16,
    "i8": types.int8, "u8": types.uint8, "i32": types.int32,
}  # fmt: skip
_KINDS = {
    types.int32: "i32", types.uint32: "u32", types.int64: "i64", types.uint64: "u64",
    types.float32: "f32", types.float64: "f64",
}  # fmt: skip
_DEFAULT_SHARED = 48 * 1024

# In Numba's own table it is an attribute of the module `cuda.shared` only.
shared_array = cuda.shared.array
cudadecl.registry.register_global(shared_array, types.Function(cudadecl.Cuda_shared_array))


def device_function(function: Callable[..., Any]) -> Any:
    """Decorator: a module-level function (or one of a factory) to be inlined into kernels.

    Inlined into the kernel's Numba IR before typing, so that literals stay literal and the function takes whatever
    types it is called with: pointers, tuples, other device functions.
    """
    return cuda.jit(device=True, inline="always")(function)


@device_function
def thread_index():  # type: ignore[no-untyped-def]
    """threadIdx.x, as uint32: an unsigned index needs no code for negative ones."""
    return types.uint32(cuda.threadIdx.x)


@device_function
def block_index():  # type: ignore[no-untyped-def]
    """blockIdx.x, as uint32."""
    return types.uint32(cuda.blockIdx.x)


@device_function
def block_index_y():  # type: ignore[no-untyped-def]
    """blockIdx.y, as uint32."""
    return types.uint32(cuda.blockIdx.y)


@device_function
def block_index_z():  # type: ignore[no-untyped-def]
    """blockIdx.z, as uint32."""
    return types.uint32(cuda.blockIdx.z)


@device_function
def block_size():  # type: ignore[no-untyped-def]
    """blockDim.x, as uint32; where a kernel knows its threads, the constant is cheaper."""
    return types.uint32(cuda.blockDim.x)


@device_function
def grid_size():  # type: ignore[no-untyped-def]
    """gridDim.x, as uint32."""
    return types.uint32(cuda.gridDim.x)


class ByValue(types.Type):
    """The type of a parameter that is a struct by value, in a signature; the kernel sees the address, a uint64.

    Numba has no such parameters: it compiles a uint64, and what the PTX says of it is changed before it is assembled.
    The struct lies in constant memory, written by the launch itself: no copy goes before the kernel, and a tensor map
    there needs no fence.  Its address is a generic one; the kernel may not write there.
    """

    def __init__(self, nbytes: int, align: int) -> None:
        self.nbytes, self.align = nbytes, align
        super().__init__(f"ByValue({nbytes}, {align})")


class Launched(NamedTuple):
    """A kernel loaded into one driver."""

    driver: seam.Driver
    function: Any


class GpuKernel:
    """A kernel of a factory, compiled (or loaded from the kernel cache) for an architecture when first asked for."""

    def __init__(
        self,
        function: Callable[..., None],
        name: str,
        signature: Any,
        spec: tuple[Any, ...],
        threads: int,
        blocks_per_multiprocessor: int | None,
        shared: int,
        registers: int | None,
    ) -> None:
        _check_closure(function, name)
        if not 1 <= threads <= 1024:
            raise ValueError(f"kernel {name} has {threads} threads a block; 1 to 1024 are allowed")
        self.function = function
        self.name = name
        self.signature = signature
        self.spec = spec
        self.threads = threads
        self.blocks_per_multiprocessor = blocks_per_multiprocessor
        self.shared = shared
        """Bytes of dynamic shared memory of a launch; more than 48 KiB is opted in for."""
        self.registers = registers
        """The budget that the compile gate holds; None stands for what the launch bounds allow."""
        flat = tuple(_flat(signature.args))
        self.kinds = tuple(_kind(name, argument) for argument in flat)
        self._structs = {number: x for number, x in enumerate(flat) if isinstance(x, ByValue)}
        self.entry = "_".join(["numbaprims", name, *(re.sub(r"\W", "_", str(part)) for part in spec)])
        self._images: dict[str, Image] = {}
        self._loaded: dict[int, Launched] = {}
        self._lock = forks.lock()
        self.block = (threads, 1, 1)

    @property
    def launch_bounds(self) -> tuple[int, ...]:
        """(threads a block, blocks a multiprocessor at least), as far as they were given."""
        least = self.blocks_per_multiprocessor
        return (self.threads,) if least is None else (self.threads, least)

    # -------------------------------------------------------------- the code
    def image(self, arch: str) -> Image:
        """PTX, cubin and what the assembler said, from the kernel cache or freshly compiled."""
        found = self._images.get(arch)
        if found is None:
            # Numba's own lock: one of ours would deadlock with a function that is being compiled in another thread.
            with global_compiler_lock:
                found = self._images.get(arch)
                if found is None:
                    found = self._images[arch] = image_of(self, arch, functools.partial(self.compile, arch))
        return found

    def images(self, archs: tuple[str, ...]) -> list[Image]:
        """As `image` for several architectures: Numba's part, 0.1 to 0.7 s, is the same for all and done once."""
        lowered: list[Any] = []

        def compile_now(arch: str) -> Image:
            if not lowered:
                lowered.append(self._lower(arch))
            return self._assemble(lowered[0], arch)

        with global_compiler_lock:
            for arch in archs:
                if arch not in self._images:
                    self._images[arch] = image_of(self, arch, functools.partial(compile_now, arch))
        return [self._images[arch] for arch in archs]

    def compile(self, arch: str) -> Image:
        """Compile past the kernel cache."""
        return self._assemble(self._lower(arch), arch)

    def _lower(self, arch: str) -> Any:
        """Numba's part: types, and LLVM code for any architecture."""
        capability = _capability(arch)
        with global_compiler_lock:
            signals.whole_refresh(cuda_target)
            # A device function that is called, not inlined, asks which GPU it is compiled for.
            asked = _dispatcher.get_current_device
            _dispatcher.get_current_device = lambda: _Compiling(capability)
            try:
                seen = (types.uint64 if isinstance(x, ByValue) else x for x in self.signature.args)
                with kernel_pipeline():
                    library, _ = _compile(
                        self.function,
                        types.void(*seen),
                        device=False,
                        abi="numba",
                        cc=capability,
                        opt=True,
                        launch_bounds=self.launch_bounds,
                    )
            finally:
                _dispatcher.get_current_device = asked
            if library._linking_files:
                raise ValueError(
                    f"kernel {self.name} calls CUDA C++ of numba-cuda (float16 or bfloat16 arithmetic of Numba does): "
                    "it could be neither kept, nor emulated; use the conversions of gpu/device/math.py"
                )
        return library

    def _assemble(self, library: Any, arch: str) -> Image:
        with global_compiler_lock:
            text: str = library.get_asm_str(cc=_capability(arch))
        ptx = _plain(text.replace(library._entry_name, self.entry))
        for number, struct in self._structs.items():
            ptx = _by_value(ptx, f"{self.entry}_param_{number}", struct)
        return assemble(ptx, self.entry, arch)

    def ptx(self, arch: str) -> str:
        """The PTX; its entry is `entry`."""
        return self.image(arch).ptx

    def cubin(self, arch: str) -> bytes:
        """What the GPU runs."""
        return self.image(arch).cubin

    def resources(self, arch: str) -> Resources:
        """Registers, spills, stack, shared memory, and the opcodes where nvdisasm is installed."""
        return self.image(arch).resources()

    def occupancy(self, target: Any) -> float:
        """The part of a multiprocessor's threads that this kernel fills."""
        used = self.resources(target.arch)
        return float(target.occupancy(self.threads, used.registers, used.static_shared + self.shared))

    # -------------------------------------------------------------- the launch
    def loaded(self, driver: seam.Driver) -> Any:
        """The driver's handle of the kernel; loads it at the first use."""
        found = self._loaded.get(driver.device)
        if found is None or found.driver is not driver:
            image = self.image(driver.target.arch)
            with self._lock:
                found = self._loaded.get(driver.device)
                if found is None or found.driver is not driver:
                    found = Launched(driver, driver.load(image.ptx, image.cubin, self.entry, self.shared))
                    self._loaded[driver.device] = found
        return found.function

    def launch(
        self,
        grid: int | tuple[int, ...],
        arguments: tuple[Any, ...],
        stream: int = 0,
        *,
        device: int = 0,
        shared: int | None = None,
    ) -> None:
        """Start the kernel: pointers and scalars in the order of its parameters, as ints and floats.

        Solvers use `launch.make_launcher`, which looks nothing up; this is for one kernel by itself.
        """
        driver = devices.current(device)
        if len(arguments) != len(self.kinds):
            raise TypeError(f"kernel {self.name} has {len(self.kinds)} parameters; {len(arguments)} were given")
        used = self.shared if shared is None else shared
        if used > max(self.shared, _DEFAULT_SHARED):
            raise ValueError(f"kernel {self.name} was loaded for {self.shared} bytes of shared memory, not {used}")
        x, y, z = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1, 1)[:3]
        driver.launch(self.loaded(driver), (x, y, z), self.block, used, stream, self.kinds, tuple(arguments))

    def __repr__(self) -> str:
        return f"<gpu kernel {self.entry}>"


def _plain(ptx: str) -> str:
    """Without what differs from process to process: Numba's environment, which kernels do not use, and its count of
    shared arrays."""
    ptx = re.sub(r"(?m)^\.common \.global .*_ZN08NumbaEnv.*\n", "", ptx)
    order: dict[str, str] = {}
    return re.sub(r"_cudapy_smem_\d+", lambda m: order.setdefault(m[0], f"shared_{len(order)}"), ptx)


def _by_value(ptx: str, name: str, struct: ByValue) -> str:
    """PTX whose parameter `name`, a 64-bit number, is a struct; what loaded the number takes the struct's address."""
    text, declared = re.subn(
        rf"\.param \.u64 {name}\b", f".param .align {struct.align} .b8 {name}[{struct.nbytes}]", ptx
    )
    text, loaded = re.subn(
        rf"ld\.param\.u64\s+(%\w+), \[{name}\];",
        # PTX 7.7; the second makes of an address in the parameters a generic one
        rf"mov.b64 \t\1, {name};\n\tcvta.param.u64 \t\1, \1;",
        text,
    )
    if declared != 1 or len(re.findall(rf"{name}\b", text)) != 1 + loaded:
        raise ValueError(f"the PTX uses parameter {name} in a way that a struct has not")
    return text


class _Compiling(NamedTuple):
    """What a device function asks of the current GPU."""

    compute_capability: tuple[Any, ...]


def gpu_kernel(
    name: str,
    signature: Any,
    spec: tuple[Any, ...],
    *,
    threads: int,
    blocks_per_sm: int | None = None,
    shared: int = 0,
    registers: int | None = None,
) -> Callable[[Callable[..., None]], GpuKernel]:
    """Make a factory's inner function a kernel.

    Args:
        name: what the kernel is called in the cache and in its PTX.
        signature: ``types.void(...)`` of ``types.CPointer``, int32, uint32, int64, uint64, float32, float64, ByValue,
            and of tuples of the others, which a launch gives member by member.
        spec: everything of the factory's arguments that its code depends on.
        threads: threads of a block; launches always use them.
        blocks_per_sm: how many blocks a multiprocessor should hold at least; the compiler keeps to
            ``65536 / (threads * blocks_per_sm)`` registers for it, and spills where they do not suffice.
        shared: bytes of dynamic shared memory, above 48 KiB too.
        registers: budget that the compile gate holds the kernel to.
    """

    def decorate(function: Callable[..., None]) -> GpuKernel:
        return GpuKernel(function, name, signature, spec, threads, blocks_per_sm, shared, registers)

    return decorate


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """The types of a signature's parameters; a tuple is as many as it has members."""
    for argument in arguments:
        if isinstance(argument, types.BaseTuple):
            yield from _flat(argument)
        else:
            yield argument


def _kind(name: str, argument: Any) -> str:
    if isinstance(argument, types.CPointer):
        return "p"
    if isinstance(argument, ByValue):
        return seam.struct_kind(argument.nbytes)
    if argument not in _KINDS:
        raise TypeError(
            f"kernel {name} has a parameter of type {argument}; pointers, scalars of 32 or 64 bits, structs by value "
            "and tuples may be"
        )
    return _KINDS[argument]


def _capability(arch: str) -> tuple[Any, ...]:
    """(9, 0, "a") of "sm_90a"."""
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
    if found is None:
        raise ValueError(f"{arch!r} is no architecture; one looks like sm_80 or sm_90a")
    major, minor, suffix = found.groups()
    return (int(major), int(minor), suffix) if suffix else (int(major), int(minor))


def _check_closure(function: Callable[..., None], name: str) -> None:
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        for part in value if isinstance(value, tuple) else (value,):
            plain = isinstance(part, (int, float, str, bool, type(None), types.Type))
            if not plain and not isinstance(part, _dispatcher.CUDADispatcher):
                raise TypeError(
                    f"kernel {name} closes over {part!r}; a factory may close over ints, floats, strings, types, "
                    "device functions and tuples of them only (anything else would not be in the kernel's cache key)"
                )
