"""What a kernel compiles to, kept in the kernel cache: PTX, the cubin assembled from it, what the assembler said."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.kernel_cache import KernelCache, collector_paused, compile_lock
from numbaprims.kernel_passes import with_room

# Distributions whose versions change the code, besides Python's sources.
_TOOLS = (
    "numba-cuda", "llvmlite", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink-cu12",
)  # fmt: skip


class Resources(NamedTuple):
    """What one thread, or one block, of a kernel takes."""

    registers: int
    spills: int
    """Bytes stored and loaded."""
    stack: int
    static_shared: int
    """Bytes a block, without what the system reserves."""
    barriers: int
    opcodes: dict[str, int]
    """How often each SASS opcode stands in the code, modifiers and all; empty where nvdisasm is not installed."""

    def count(self, opcode: str) -> int:
        """How many instructions begin with `opcode`: ``count("LDG.E.128")``."""
        return sum(number for name, number in self.opcodes.items() if name.startswith(opcode))

    def has(self, *opcodes: str) -> bool:
        """Whether each of them is there."""
        return all(self.count(opcode) for opcode in opcodes)


class Image(NamedTuple):
    """One kernel for one architecture."""

    arch: str
    entry: str
    ptx: str
    cubin: bytes
    log: str
    """What the assembler said, ``ptxas -v``."""

    def resources(self, *, sass: bool = True) -> Resources:
        """`sass=False` leaves the opcodes out, whose disassembly costs 0.2 s."""
        return _resources(self, sass)

    def sass(self) -> str:
        """The disassembly; empty where nvdisasm is not installed."""
        return _disassemble(self.cubin)

    def to_bytes(self) -> bytes:
        head = json.dumps([self.arch, self.entry, self.log, len(self.ptx)]).encode()
        return b"%d\n%s" % (len(head), head) + self.ptx.encode("ascii") + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        length, _, rest = data.partition(b"\n")
        arch, entry, log, size = json.loads(rest[: int(length)])
        code = rest[int(length) :]
        return cls(arch, entry, code[:size].decode("ascii"), code[size:], log)


def assemble(ptx: str, entry: str, arch: str) -> Image:
    """Assemble PTX for an architecture, without a GPU.

    Raises:
        ValueError: the assembler refuses it; its words are in the message.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=arch, ptxas_options=["-v"], verbose=True)
    try:
        linker = Linker(ObjectCode.from_ptx(ptx.encode(), name=entry), options=options)
        try:
            code = bytes(linker.link("cubin").code)
            log = linker.get_info_log() + linker.get_error_log()
        finally:
            linker.close()
    except Exception as error:
        raise ValueError(f"{entry} does not assemble for {arch}: {error}") from error
    lines = [line for line in log.replace("\0", "").splitlines() if line and "Compile time" not in line]
    return Image(arch, entry, ptx, code, "\n".join(lines))


def _resources(image: Image, sass: bool) -> Resources:
    def most(pattern: str) -> int:
        return max(map(int, re.findall(pattern, image.log)), default=0)  # the log says some twice

    # From sm_90 on, 1 KiB of a block's shared memory belongs to the system and is counted in.
    reserved = 1024 if int(re.sub(r"\D", "", image.arch)) >= 90 else 0
    return Resources(
        registers=most(r"[Uu]sed (\d+) registers"),
        spills=most(r"(\d+) bytes spill stores") + most(r"(\d+) bytes spill loads"),
        stack=most(r"(\d+) bytes stack frame"),
        static_shared=max(0, most(r"(\d+) bytes smem") - reserved),
        barriers=most(r"used (\d+) barriers"),
        opcodes=_opcodes(_disassemble(image.cubin)) if sass else {},
    )


_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)")


def _opcodes(sass: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in _INSTRUCTION.findall(sass):
        found[name] = found.get(name, 0) + 1
    return found


@functools.cache
def nvdisasm() -> str | None:
    """Path of the disassembler (package nvidia-cuda-nvdisasm, or a CUDA toolkit's), if there is one."""
    from cuda import pathfinder

    try:
        return pathfinder.find_nvidia_binary_utility("nvdisasm")
    except Exception:
        return None


@functools.lru_cache(maxsize=64)
def _disassemble(cubin: bytes) -> str:
    program = nvdisasm()
    if program is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        with open(path, "wb") as file:
            file.write(cubin)
        done = subprocess.run([program, "-c", path], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


# ---------------------------------------------------------------- the cache


@functools.cache
def versions() -> tuple[tuple[str, str], ...]:
    """What compiles kernels here, with its versions; a toolkit of the system has none to tell."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for tool in _TOOLS:
        try:
            found.append((tool, version(tool)))
        except PackageNotFoundError:
            found.append((tool, ""))
    return tuple(found)


class ImageCache(KernelCache):
    """The cache of one kernel's images, one entry for each architecture."""

    def facts(self, sig: str) -> dict[str, str]:
        return {"target": sig.partition(" ")[0], "versions": repr(versions())}

    def rebuild(self, payload: bytes, target_context: Any) -> Image:
        return Image.from_bytes(payload)

    def reduce(self, result: Image) -> bytes:
        return result.to_bytes()


def image_of(kernel: Any, arch: str, compile_now: Callable[[], Image]) -> Image:
    """The kernel's image from the cache, or from the compiler, which then is kept.

    As for kernels of the CPU: a file that is corrupt, unreadable or cannot be written costs a warning and a
    compilation, and of several processes one compiles while the others wait.
    """
    options = {"launch_bounds": kernel.launch_bounds, "entry": kernel.entry}
    cache = ImageCache(kernel.function, kernel.name, kernel.spec, options)
    key = f"{arch} {kernel.signature}"
    with compile_lock(cache):
        found: Image | None = cache.load_overload(key, None)
        if found is None:
            with collector_paused():
                found = with_room(compile_now)
            cache.save_overload(key, found)
    return found
