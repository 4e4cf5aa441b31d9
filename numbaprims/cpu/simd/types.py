"""Numba types for explicit vectors: `Pointer`, `Vec`, `Mask`.

A `Vec` is an LLVM vector and lives in registers: its data model is a primitive one, so no store or load lies
between two operations on it.  float16 and bfloat16 are storage only (lanes of 16 bits without arithmetic).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import models, register_model

#: element -> (bits, kind): kind "f" float, "i" signed, "u" unsigned, "h" 16-bit storage of a float
ELEMENTS: dict[str, tuple[int, str]] = {
    "f64": (64, "f"), "f32": (32, "f"), "f16": (16, "h"), "bf16": (16, "h"),
    "i8": (8, "i"), "u8": (8, "u"), "i16": (16, "i"), "u16": (16, "u"),
    "i32": (32, "i"), "u32": (32, "u"), "i64": (64, "i"), "u64": (64, "u"),
}  # fmt: skip

_SCALARS = {
    "f64": types.float64, "f32": types.float32, "f16": types.uint16, "bf16": types.uint16,
    "i8": types.int8, "u8": types.uint8, "i16": types.int16, "u16": types.uint16,
    "i32": types.int32, "u32": types.uint32, "i64": types.int64, "u64": types.uint64,
}  # fmt: skip


def llvm_element(elem: str) -> Any:
    """The LLVM type of one element."""
    bits, kind = ELEMENTS[elem]
    if kind == "f":
        return ir.FloatType() if bits == 32 else ir.DoubleType()
    return ir.IntType(bits)


#: Bytes of arrays that a kernel may keep on the stack.  With what LLVM spills, a kernel takes at most 32 kB, and a
#: call, whose kernels call each other, fits into a thread of 128 kB.  What is larger goes into the workspace.
STACK_BYTES = 28 << 10


def stack_block(context: Any, builder: Any, element: Any, count: int) -> Any:
    """Room for `count` elements of an LLVM type on the stack, at a line of the cache."""
    with builder.goto_entry_block():
        block = builder.alloca(ir.ArrayType(element, count))
    block.align = 64
    # variables of the function itself, which end in registers, have no alignment of their own
    ours = [x for x in builder.function.entry_basic_block.instructions if isinstance(x, ir.AllocaInstr) and x.align]
    total = sum(-(-context.get_abi_sizeof(x.allocated_type) // 64) * 64 for x in ours)
    if total > STACK_BYTES:
        raise ValueError(
            f"arrays on the stack take {total} bytes, {STACK_BYTES} are allowed: what is larger goes into the workspace"
        )
    return block


def scalar_type(elem: str) -> Any:
    """The Numba scalar type of one element (uint16 for f16 and bf16)."""
    return _SCALARS[elem]


def lanes(elem: str, vector_bytes: int) -> int:
    """How many elements a register of `vector_bytes` holds."""
    return vector_bytes * 8 // ELEMENTS[elem][0]


class Pointer(types.Type):
    """The address of elements of one type."""

    def __init__(self, elem: str) -> None:
        if elem not in ELEMENTS:
            raise ValueError(f"elem is {elem!r}; it must be one of {', '.join(ELEMENTS)}")
        self.elem = elem
        super().__init__(name=f"Pointer({elem})")


class Vec(types.Type):
    """`n` elements in one vector register."""

    def __init__(self, elem: str, n: int) -> None:
        if elem not in ELEMENTS:
            raise ValueError(f"elem is {elem!r}; it must be one of {', '.join(ELEMENTS)}")
        self.elem = elem
        self.n = n
        super().__init__(name=f"Vec({elem},{n})")


class Mask(types.Type):
    """`n` booleans, one a lane."""

    def __init__(self, n: int) -> None:
        self.n = n
        super().__init__(name=f"Mask({n})")


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Pointer) -> None:
        super().__init__(dmm, fe_type, llvm_element(fe_type.elem).as_pointer())


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(llvm_element(fe_type.elem), fe_type.n))


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Mask) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(ir.IntType(1), fe_type.n))
