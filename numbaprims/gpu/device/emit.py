"""How device functions emit code: inline PTX, addresses, tuples.  Nothing here is called from a kernel.

Three rules that LLVM does not check:

- A collective instruction (shuffle, vote, ldmatrix, mma, wgmma) is `collective=True`, LLVM's ``convergent``.  Without
  it, LLVM sinks a product whose result is stored under a condition into that condition, where half of the warp is
  missing.
- An instruction that reads or writes memory, or orders such accesses, is `memory=True`: it then keeps its place among
  loads, stores and other such instructions.
- An instruction of neither kind is a function of its operands: LLVM may move, merge and drop it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from numbaprims.gpu.jit import cuda, types

__all__ = [
    "F32", "F64", "I16", "I32", "I64", "I8", "asm", "call_nvvm", "element_pointer", "element_type", "int_literal",
    "intrinsic", "read_only", "shared_elements",
    "string_literal", "to_global", "to_shared", "tuple_of", "types", "unpack", "void",
]  # fmt: skip

intrinsic: Any = cuda.extending.intrinsic
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
GLOBAL, SHARED = 1, 3
"""LLVM's numbers of the address spaces."""

_CONSTRAINTS = {"i16": "h", "i32": "r", "i64": "l", "float": "f", "double": "d"}


def asm(
    builder: Any,
    text: str,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    *,
    tied: Sequence[Any] = (),
    collective: bool = False,
    memory: bool = False,
) -> list[Any]:
    """Inline PTX: the values of its outputs.

    The operands $0, $1, ... are the outputs, then the inputs.  A value of `tied` enters in the register of the output
    of its position: the instruction changes that register in place.
    """
    constraints = ["=" + _CONSTRAINTS[str(output)] for output in outputs]
    constraints += [_CONSTRAINTS[str(value.type)] for value in inputs]
    constraints += [str(position) for position in range(len(tied))]
    if memory:
        constraints.append("~{memory}")
    values = [*inputs, *tied]
    if not outputs:
        result: Any = ir.VoidType()
    elif len(outputs) == 1:
        result = outputs[0]
    else:
        result = ir.LiteralStructType(outputs)
    function = ir.FunctionType(result, [value.type for value in values])
    attributes = [name for name, on in (("convergent", collective), ("readnone", not memory)) if on]
    call = builder.call(
        ir.InlineAsm(function, text, ",".join(constraints), side_effect=memory), values, attrs=tuple(attributes)
    )
    if len(outputs) < 2:
        return [call][: len(outputs)]
    return [builder.extract_value(call, position) for position in range(len(outputs))]


def void(context: Any) -> Any:
    """What an intrinsic of type void returns."""
    return context.get_dummy_value()


def int_literal(t: Any) -> int | None:
    """The value of a literal int type, or None as long as Numba has not made it literal."""
    return t.literal_value if isinstance(t, types.IntegerLiteral) else None


def string_literal(t: Any) -> str | None:
    """The value of a literal str type, or None as long as Numba has not made it literal."""
    return t.literal_value if isinstance(t, types.StringLiteral) else None


def unpack(builder: Any, value: Any, t: Any) -> list[Any]:
    """The elements of a tuple, or a scalar alone."""
    if isinstance(t, types.BaseTuple):
        return [builder.extract_value(value, position) for position in range(len(t))]
    return [value]


def tuple_of(context: Any, builder: Any, t: Any, values: Sequence[Any]) -> Any:
    """The values as Numba's tuple type `t`."""
    return context.make_tuple(builder, t, values)


def element_type(t: Any) -> Any:
    """The element type of a pointer or of a one-dimensional contiguous array, None of anything else."""
    if isinstance(t, types.CPointer):
        return t.dtype
    if isinstance(t, types.Array) and t.ndim == 1 and t.layout == "C":
        return t.dtype
    return None


def element_pointer(context: Any, builder: Any, t: Any, value: Any, index_type: Any, index: Any) -> Any:
    """The address of element `index` (never wrapped, never checked) of a pointer or an array."""
    base = value if isinstance(t, types.CPointer) else context.make_array(t)(context, builder, value).data
    if index.type.width < 64:
        index = builder.sext(index, I64) if index_type.signed else builder.zext(index, I64)
    return builder.gep(base, [index])


def to_shared(builder: Any, pointer: Any) -> Any:
    """A pointer to shared memory as the 32-bit address that PTX takes."""
    return builder.ptrtoint(builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SHARED)), I32)


def to_global(builder: Any, pointer: Any) -> Any:
    """A pointer to global memory as the 64-bit address that PTX takes."""
    return builder.ptrtoint(builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, GLOBAL)), I64)


def shared_elements(builder: Any, name: str, element: Any, count: int) -> Any:
    """Shared memory of the block, `count` elements: its first one's address.  A name stands for one array a kernel."""
    array = ir.GlobalVariable(builder.module, ir.ArrayType(element, count), name, addrspace=SHARED)
    array.linkage, array.align, array.initializer = "internal", 16, ir.Constant(array.value_type, ir.Undefined)
    return builder.gep(array, [I32(0), I32(0)])


def read_only(builder: Any, pointer: Any) -> Any:
    """A pointer for loads through the read-only path: ld.global.nc needs the address space in the pointer's type."""
    return builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, GLOBAL))


def call_nvvm(builder: Any, name: str, result: Any, arguments: Sequence[Any] = ()) -> Any:
    """A call of one of libNVVM's intrinsics."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [value.type for value in arguments]), name)
    return builder.call(function, arguments)
