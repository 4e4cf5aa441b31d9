"""The gate on stacks: whatever kernel a test compiles, its frame is read from its machine code."""

import functools
import re
import struct

from llvmlite import binding as llvm

from numbaprims.cpu.jit import RangeKernel

#: Bytes that a kernel may take of a thread's stack (docs/add-a-kernel.md).
LARGEST = 32 << 10

#: `sub rsp, number` on x86-64; `sub sp, sp, pages` on AArch64, or into a register, to align what is in it.
_X86 = re.compile(rb"\x48\x81\xec(....)", re.DOTALL)
_ARM, _ARM_MASK = 0xD14003E0, 0xFFC003E0


def frame_bytes(code: bytes) -> int:
    """The largest frame of the functions in an object file; less than a page may be left out."""
    found = 0
    for section in llvm.ObjectFileRef.from_data(code).sections():
        if section.is_text():
            text = section.data()
            if "x86_64" in llvm.get_process_triple():
                sizes = [struct.unpack("<I", number)[0] for number in _X86.findall(text)]
            else:
                words = struct.unpack(f"<{len(text) // 4}I", text[: len(text) // 4 * 4])
                sizes = [(word >> 10 & 0xFFF) << 12 for word in words if word & _ARM_MASK == _ARM]
            found = max(found, *sizes, 0)
    return found


def check(kernel: RangeKernel, compiled: object) -> None:
    """AssertionError for a kernel whose frame is too large."""
    code = compiled._library._compiled_object  # type: ignore[attr-defined]
    # one that comes from the cache was checked when it was compiled
    size = 0 if code is None else frame_bytes(code)
    assert size <= LARGEST, f"{kernel} takes {size} bytes of stack, {LARGEST} are allowed"


def watch() -> None:
    """Check every kernel of this process from now on."""
    compile_now = RangeKernel._compile

    @functools.wraps(compile_now)
    def checked(self):
        compiled = compile_now(self)
        check(self, compiled)
        return compiled

    RangeKernel._compile = checked
