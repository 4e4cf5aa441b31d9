"""What the compile gates look at: every kernel variant that a module lists in GATES, compiled for each architecture.

All kernels of a module are disassembled by one run of nvdisasm, which costs 0.2 s to start, and 0.01 s a kernel.
"""

from __future__ import annotations

import importlib
import re
import struct
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numbaprims.gpu
from numbaprims.gpu.image import Image, nvdisasm
from numbaprims.gpu.target import KNOWN

ARCHS = ("sm_80", "sm_90a")
#: How many variants of each module a plain test run compiles, by folder: where one takes seconds. --slow takes all.
FIRST = {"attention": 2, "gemm": 3, "conv": 2, "windows": 1, "reduce": 2, "stack": 2}
STATIC_SHARED = 48 * 1024
REGISTER_FILE = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread

_FP64 = ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "DMMA", "MUFU.RCP64H", "MUFU.RSQ64H")
_LOCAL = ("LDL", "STL")
# LD and ST without a letter for the space: the address space was lost, each access asks which one it is; RED is global
# on sm_80
_GENERIC = re.compile(r"(LD|ST|ATOM)(\.|$)")
_PTX_GENERIC = re.compile(r"^\s*(?:@!?%p\d+\s+)?(ld|st)\.(?:volatile\.)?(?:v[24]\.)?[bfsu]\d+\b", re.M)
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)")


@dataclass(frozen=True)
class Gate:
    """One kernel variant and the SASS opcodes that it must have."""

    factory: Any
    spec: tuple[Any, ...]
    opcodes: tuple[str, ...]
    archs: tuple[str, ...] = ARCHS
    """What it is compiled for, where it is not for all."""

    @property
    def name(self) -> str:
        return f"{self.factory.__name__}{self.spec}"

    def kernel(self) -> Any:
        return self.factory(*self.spec)


def modules() -> list[str]:
    """Modules that define GATES, by their path below numbaprims.gpu."""
    root = Path(numbaprims.gpu.__path__[0])
    names = []
    for path in sorted(root.rglob("*.py")):
        if path.name != "__init__.py" and re.search(r"^GATES\b", path.read_text(), re.M):
            names.append(".".join(path.relative_to(root).with_suffix("").parts))
    return names


def gates(module: str) -> list[Gate]:
    """The variants of a module; those that it takes over from another module count there."""
    listed = importlib.import_module(f"numbaprims.gpu.{module}").GATES
    return [Gate(*entry) for entry in listed if entry[0].__module__ == f"numbaprims.gpu.{module}"]


def first(module: str) -> int:
    """How many of a module's variants a plain test run compiles."""
    return FIRST.get(module.split(".")[0], len(gates(module)))


def opcodes(images: list[Image]) -> list[Counter[str]]:
    """How often each SASS opcode stands in each image (all for one architecture); empty without nvdisasm."""
    program = nvdisasm()
    if program is None or not images:
        return [Counter() for _ in images]
    code, ends = b"", []
    for image in images:
        code += text_section(image.cubin, image.entry)
        ends.append(len(code))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.bin")
        path.write_bytes(code)
        arch = images[0].arch.replace("sm_", "SM")
        done = subprocess.run(
            [program, "--binary", arch, "-ndf", str(path)], capture_output=True, text=True, check=True
        )
    found: list[Counter[str]] = [Counter() for _ in images]
    index = 0
    for address, opcode in _INSTRUCTION.findall(done.stdout):
        while int(address, 16) >= ends[index]:
            index += 1
        found[index][opcode] += 1
    return found


def text_section(cubin: bytes, entry: str) -> bytes:
    """The machine code of a kernel, from its ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + number * size) for number in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, length in headers:
        start = names + name
        if cubin[start : cubin.index(b"\0", start)].decode() == f".text.{entry}":
            return cubin[offset : offset + length]
    raise ValueError(f"the cubin has no code of {entry}")


def complaints(gate: Gate, arch: str, sass: Counter[str]) -> list[str]:
    """What is wrong with a variant; empty if nothing."""
    kernel = gate.kernel()
    image = kernel.image(arch)
    used = image.resources(sass=False)
    wrong = []
    budget = _budget(kernel)
    if used.registers > budget:
        wrong.append(f"{used.registers} registers, the budget is {budget}")
    if used.spills:
        wrong.append(f"{used.spills} bytes of spills")
    if used.stack:
        wrong.append(f"{used.stack} bytes of stack")
    if used.static_shared > STATIC_SHARED:
        wrong.append(f"{used.static_shared} bytes of static shared memory")
    most = KNOWN[arch].shared_per_block
    if used.static_shared + kernel.shared > most:
        wrong.append(f"{used.static_shared + kernel.shared} bytes of shared memory, {arch} has {most}")
    if KNOWN[arch].blocks_per_multiprocessor(kernel.threads, used.registers, used.static_shared + kernel.shared) < (
        kernel.blocks_per_multiprocessor or 1
    ):
        wrong.append(f"fewer than {kernel.blocks_per_multiprocessor} blocks fit on a multiprocessor")
    if "C7510" in image.log or "serialization" in image.log:
        wrong.append("the assembler serialises wgmma")
    return wrong + _code(gate, image, sass)


def _budget(kernel: Any) -> int:
    """What the kernel declares, or what its launch bounds leave of the register file."""
    blocks = kernel.blocks_per_multiprocessor or 1
    bound = min(MOST_REGISTERS, REGISTER_FILE // (-(-kernel.threads // 32) * 32 * blocks))
    return min(bound, kernel.registers or bound)


def _code(gate: Gate, image: Image, sass: Counter[str]) -> list[str]:
    wrong = []
    double = "f64" in (*gate.spec, *gate.kernel().spec)
    if re.search(r"\b(ld|st)\.local\b", image.ptx):
        wrong.append("PTX loads or stores local memory")
    if match := _PTX_GENERIC.search(image.ptx):
        wrong.append(f"PTX accesses generic addresses: {match.group().strip()}")
    if not double and (match := re.search(r"\b\w+[\w.]*\.f64\b", image.ptx)):
        wrong.append(f"PTX computes in float64: {match.group()}")
    for opcode in sass:
        if opcode.startswith(_LOCAL):
            wrong.append(f"{opcode}: local memory")
        if _GENERIC.match(opcode):
            wrong.append(f"{opcode}: generic address")
        if not double and (opcode.startswith(_FP64) or ".F64" in opcode):
            wrong.append(f"{opcode}: float64")
    products = sum(count for opcode, count in sass.items() if re.match(r"[HIQ]GMMA", opcode))
    if (
        products > 1
        and sum(count for opcode, count in sass.items() if opcode.startswith("WARPGROUP.DEPBAR")) >= products
    ):
        # a division that calls is reason enough; the log does not always say so
        wrong.append("the assembler waits for each wgmma")
    if sass:
        wrong += [f"no {want}" for want in gate.opcodes if not any(opcode.startswith(want) for opcode in sass)]
    return wrong
