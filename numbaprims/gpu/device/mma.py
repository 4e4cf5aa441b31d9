"""Tensor cores: fragments by ldmatrix and stmatrix, products by mma.sync (8.0) and wgmma (9.0); dp4a beside them.

mma.sync multiplies a 16 x k fragment of A by a k x 8 fragment of B and adds to a 16 x 8 fragment, k being 32 bytes: 16
float16 or bfloat16, 8 tfloat32, 32 int8.  In bytes the fragments of all types lie alike: lane l holds, of A, the
4-byte words (l / 4, l % 4), (l / 4 + 8, l % 4), (l / 4, l % 4 + 4), (l / 4 + 8, l % 4 + 4) of 16 rows of 8 words; of B
the words (l / 4, l % 4) and (l / 4, l % 4 + 4) of 8 columns of 8 words; of the sums the elements (l / 4, 2 (l % 4)),
the next column, and the same 8 rows further down.  ldmatrix loads exactly these words, so one kernel serves all types
whose k is contiguous.

wgmma multiplies tiles of 64 x k and k x n (n = 8 ... 256) out of shared memory, four warps together.  Its sums are
registers that the instruction changes while the program runs on: they enter every call tied, and `wgmma_wait` hands
them back, so that no use can move above the wait.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.gpu.device.emit import (
    F32,
    F64,
    I32,
    I64,
    asm,
    int_literal,
    intrinsic,
    string_literal,
    tuple_of,
    types,
    unpack,
    void,
)  # fmt: skip

FRAGMENT_K = {"f16": 16, "bf16": 16, "tf32": 8, "i8": 32, "u8": 32}
"""k of one mma, 32 bytes."""
_PTX_TYPE = {"f16": "f16", "bf16": "bf16", "tf32": "tf32", "i8": "s8", "u8": "u8"}


@intrinsic
def ldmatrix(typingctx, address, transposed):  # type: ignore[no-untyped-def]
    """Four 8 x 8 matrices of 16-bit elements: lane 8 i + r gives the address of row r of matrix i, 16 bytes.

    Returns four uint32, word l % 4 of row l / 4 of each matrix; with `transposed` each matrix is transposed first.
    """
    literal = int_literal(transposed)
    if literal is None and isinstance(transposed, types.BooleanLiteral):
        literal = int(transposed.literal_value)
    if literal is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        form = ".trans" if literal else ""
        text = f"ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
        words = asm(builder, text, [args[0]], [I32] * 4, collective=True, memory=True)
        return tuple_of(context, builder, sig.return_type, words)

    return types.UniTuple(types.uint32, 4)(types.uint32, transposed), codegen


@intrinsic
def stmatrix(typingctx, address, words):  # type: ignore[no-untyped-def]
    """Store four 8 x 8 matrices of 16-bit elements (9.0): what `ldmatrix` loads, back to where its lanes say."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
        asm(builder, text, [args[0], *unpack(builder, args[1], sig.args[1])], collective=True, memory=True)
        return void(context)

    return types.void(types.uint32, types.UniTuple(types.uint32, 4)), codegen


def _braces(first: int, count: int) -> str:
    return "{" + ", ".join(f"${number}" for number in range(first, first + count)) + "}"


@intrinsic
def mma(typingctx, a, b, c, a_dtype, b_dtype):  # type: ignore[no-untyped-def]
    """The sums a b + c of one warp: a is 4 uint32, b 2 uint32, c 4 float32 (int32 for int8).

    Dtypes: "f16", "bf16", "tf32", equal on both sides, or "i8" and "u8" in any combination.  Products of int8 are
    exact, their sums wrap.
    """
    left, right = string_literal(a_dtype), string_literal(b_dtype)
    if left not in FRAGMENT_K or right not in FRAGMENT_K:
        return None
    integer = left in ("i8", "u8")
    if integer != (right in ("i8", "u8")) or (not integer and left != right):
        return None
    number, register, kind = (types.int32, I32, "s32") if integer else (types.float32, F32, "f32")
    words, sums = types.uint32, types.UniTuple(number, 4)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        text = (
            f"mma.sync.aligned.m16n8k{FRAGMENT_K[left]}.row.col.{kind}.{_PTX_TYPE[left]}.{_PTX_TYPE[right]}.{kind} "
            f"{_braces(0, 4)}, {_braces(4, 4)}, {_braces(8, 2)}, {_braces(10, 4)};"
        )
        inputs = [part for value, t in zip(args[:3], sig.args[:3], strict=True) for part in unpack(builder, value, t)]
        values = asm(builder, text, inputs, [register] * 4, collective=True)
        return tuple_of(context, builder, sig.return_type, values)

    return sums(types.UniTuple(words, 4), types.UniTuple(words, 2), sums, a_dtype, b_dtype), codegen


@intrinsic
def round_tf32(typingctx, x):  # type: ignore[no-untyped-def]
    """A float32, as its bits, rounded to the 10 bits of mantissa of tfloat32, ties away from zero.

    mma reads tfloat32 operands' upper bits only: without this it would cut, an error twice as large and of one sign.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return asm(builder, "cvt.rna.tf32.f32 $0, $1;", [builder.bitcast(args[0], F32)], [I32])[0]

    return types.uint32(types.uint32), codegen


def _dot4(builder: Any, left: str, right: str, values: list[Any]) -> Any:
    kinds = ".".join("s32" if name == "i8" else "u32" for name in (left, right))
    return asm(builder, f"dp4a.{kinds} $0, $1, $2, $3;", values, [I32])[0]


def _to_and_fro(rows: int, columns: int) -> list[tuple[int, int]]:
    """The elements of a block, four columns at a time, each beside the one before: a multiply-add then reads two new
    registers, and three in one of the two banks never (83 of 1024 did by rows)."""
    order: list[tuple[int, int]] = []
    for first in range(0, columns, 4):
        for i in range(rows) if first % 8 == 0 else reversed(range(rows)):
            four = [(i, j) for j in range(first, min(first + 4, columns))]
            order += four if i % 2 == (first // 4 * (rows - 1)) % 2 else reversed(four)
    return order


@intrinsic
def add_products(typingctx, sums, a, b, a_dtype, b_dtype):  # type: ignore[no-untyped-def]
    """sums[i len(b) + j] += a[i] b[j] for all elements of two tuples: fused multiply-adds, or dp4a of words of int8.

    `sums` is a local array.  Written out, since LLVM unrolls no loop of so many: in a loop it would be in memory.
    """
    left, right = string_literal(a_dtype), string_literal(b_dtype)
    if left is None or right is None or not isinstance(a, types.UniTuple) or not isinstance(b, types.UniTuple):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base = context.make_array(sig.args[0])(context, builder, args[0]).data
        rows, columns = (unpack(builder, args[position], sig.args[position]) for position in (1, 2))
        for i, j in _to_and_fro(len(rows), len(columns)):
            x, y = rows[i], columns[j]
            place = builder.gep(base, [ir.Constant(I32, i * len(columns) + j)])
            total = builder.load(place)
            integer = isinstance(total.type, ir.IntType)
            builder.store(_dot4(builder, left, right, [x, y, total]) if integer else builder.fma(x, y, total), place)
        return void(context)

    return types.void(sums, a, b, a_dtype, b_dtype), codegen


@intrinsic
def add_products_f64(typingctx, sums, a, b, depth):  # type: ignore[no-untyped-def]
    """Add the products of float64 fragments on tensor cores, `depth` k (4, 8 or 16; 4 alone before 9.0).

    `a` is a number for each 4 k and 8 rows: lane l has k l % 4 and row l / 4 of each; `b` alike for 8 columns.  `sums`
    is a local array, two numbers for each 8 rows and 8 columns: row l / 4, columns 2 (l % 4) and the next.
    """
    k = int_literal(depth)
    if k not in (4, 8, 16) or not isinstance(a, types.UniTuple) or not isinstance(b, types.UniTuple):
        return None
    quarters = k // 4
    rows, columns = len(a) // quarters, len(b) // quarters
    # the products of 8 rows that every tensor core of float64 has; from 9.0 on those of 16
    height = 1 if k == 4 else 2

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base = context.make_array(sig.args[0])(context, builder, args[0]).data
        left, right = unpack(builder, args[1], sig.args[1]), unpack(builder, args[2], sig.args[2])
        count = height * quarters
        text = (
            f"mma.sync.aligned.m{8 * height}n8k{k}.row.col.f64.f64.f64.f64 {_braces(0, 2 * height)}, "
            f"{_braces(2 * height, count)}, {_braces(2 * height + count, quarters)}, "
            f"{_braces(2 * height + count + quarters, 2 * height)};"
        )
        for i in range(0, rows, height):
            x = [left[q * rows + i + h] for q in range(quarters) for h in range(height)]
            for j in range(columns):
                y = [right[q * columns + j] for q in range(quarters)]
                places = [
                    builder.gep(base, [ir.Constant(I32, 2 * ((i + h) * columns + j) + e)])
                    for h in range(height)
                    for e in range(2)
                ]
                before = [builder.load(place) for place in places]
                after = asm(builder, text, [*x, *y, *before], [F64] * len(places), collective=True)
                for place, value in zip(places, after, strict=True):
                    builder.store(value, place)
        return void(context)

    return types.void(sums, a, b, depth), codegen


@intrinsic
def dot4(typingctx, a, b, c, a_dtype, b_dtype):  # type: ignore[no-untyped-def]
    """c plus the four products of the bytes of two words (dp4a); dtypes "i8" or "u8"."""
    left, right = string_literal(a_dtype), string_literal(b_dtype)
    if left not in ("i8", "u8") or right not in ("i8", "u8"):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return _dot4(builder, left, right, args[:3])

    return types.int32(types.uint32, types.uint32, types.int32, a_dtype, b_dtype), codegen


@intrinsic
def wgmma_descriptor(typingctx, address, leading, stride):  # type: ignore[no-untyped-def]
    """The uint64 that describes a tile in shared memory with 128-byte swizzle; offsets in bytes, multiples of 16.

    k contiguous: rows of 128 bytes, `stride` between groups of 8 rows (1024), `leading` not used.  m or n contiguous:
    64 of them in each row of k, `stride` between groups of 8 rows of k, `leading` between groups of 64.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        def field(value: Any, shift: int) -> Any:
            masked = builder.and_(builder.lshr(value, ir.Constant(I32, 4)), ir.Constant(I32, 0x3FFF))
            return builder.shl(builder.zext(masked, I64), ir.Constant(I64, shift))

        low = builder.or_(field(args[0], 0), field(args[1], 16))
        return builder.or_(builder.or_(low, field(args[2], 32)), ir.Constant(I64, 1 << 62))

    return types.uint64(types.uint32, types.uint32, types.uint32), codegen


def _sum_kind(dtype: str) -> tuple[Any, Any, str]:
    return (types.int32, I32, "s32") if dtype in ("i8", "u8") else (types.float32, F32, "f32")


@intrinsic
def wgmma(typingctx, sums, a, b, accumulate, a_dtype, b_dtype, a_transposed, b_transposed):  # type: ignore[no-untyped-def]
    """Start sums += a b for one 64 x n tile of four warps; n is twice the length of the tuple of sums.

    a and b are descriptors, a may be 4 uint32 instead, of each warp the fragment of its 16 rows that mma takes (16-bit
    types); where `accumulate` is 0 the sums start at 0.  `a_transposed` and `b_transposed` (0 or 1,
    16-bit types only) say that m or n is contiguous instead of k.  `wgmma_fence` must stand before the first use of the
    registers, `wgmma_commit` after the last product, `wgmma_wait` before the sums are read.
    """
    left, right = string_literal(a_dtype), string_literal(b_dtype)
    turns = int_literal(a_transposed), int_literal(b_transposed)
    if left not in FRAGMENT_K or right not in FRAGMENT_K or None in turns or not isinstance(sums, types.UniTuple):
        return None
    number, register, kind = _sum_kind(left)
    count = len(sums)
    if sums.dtype != number or count * 2 not in range(8, 257, 8) or (any(turns) and FRAGMENT_K[left] != 16):
        return None
    descriptor, words = types.uint64, types.UniTuple(types.uint32, 4)
    held = isinstance(a, types.BaseTuple)
    if held and (a != words or FRAGMENT_K[left] != 16 or turns[0]):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        modifiers = {16: f", 1, 1, {turns[0]}, {turns[1]}", 8: ", 1, 1", 32: ""}[FRAGMENT_K[left]]
        first, next_operand = f"${count}", count + 1
        if held:
            modifiers, first, next_operand = f", 1, 1, {turns[1]}", _braces(count, 4), count + 4
        text = (
            f"{{ .reg .pred p; setp.ne.b32 p, ${next_operand + 1}, 0; "
            f"wgmma.mma_async.sync.aligned.m64n{2 * count}k{FRAGMENT_K[left]}.{kind}.{_PTX_TYPE[left]}."
            f"{_PTX_TYPE[right]} {_braces(0, count)}, {first}, ${next_operand}, p{modifiers}; }}"
        )
        inputs = [*unpack(builder, args[1], sig.args[1]), *args[2:4]]
        values = asm(
            builder, text, inputs, [register] * count, tied=unpack(builder, args[0], sig.args[0]), collective=True,
            memory=True,
        )  # fmt: skip
        return tuple_of(context, builder, sig.return_type, values)

    return sums(
        sums, words if held else descriptor, descriptor, types.int32, a_dtype, b_dtype, a_transposed, b_transposed
    ), codegen


def _define_wgmma(name: str, text: str, doc: str) -> Any:
    def plain(typingctx):  # type: ignore[no-untyped-def]
        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            asm(builder, text, collective=True, memory=True)
            return void(context)

        return types.void(), codegen

    plain.__name__ = name
    plain.__doc__ = doc
    return intrinsic(plain)


wgmma_fence = _define_wgmma(
    "wgmma_fence", "wgmma.fence.sync.aligned;", "Order register and shared-memory accesses before the next wgmma."
)
wgmma_commit = _define_wgmma(
    "wgmma_commit", "wgmma.commit_group.sync.aligned;", "End a group: the wgmma that were started since the last one."
)


@intrinsic
def wgmma_begin(typingctx, sums, words):  # type: ignore[no-untyped-def]
    """`wgmma_fence` that hands back the sums and the registers of the left operands, a tuple of two tuples.

    What makes them is computed before: a register that is written between the fence and a product that reads it makes
    the assembler wait for each product.
    """
    if not isinstance(sums, types.UniTuple) or not isinstance(words, types.UniTuple):
        return None
    both = types.Tuple((sums, words))

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        parts = [unpack(builder, value, t) for value, t in zip(args, sig.args, strict=True)]
        values = [*parts[0], *parts[1]]
        fenced = asm(
            builder, "wgmma.fence.sync.aligned;", [], [value.type for value in values], tied=values, collective=True,
            memory=True,
        )  # fmt: skip
        count = len(parts[0])
        tuples = [
            tuple_of(context, builder, t, some)
            for t, some in zip(sig.args, (fenced[:count], fenced[count:]), strict=True)
        ]
        return tuple_of(context, builder, sig.return_type, tuples)

    return both(sums, words), codegen


@intrinsic
def wgmma_wait(typingctx, sums, newest):  # type: ignore[no-untyped-def]
    """Wait for all but the `newest` last groups; gives back the sums, which may be read where newest is 0."""
    n = int_literal(newest)
    if n is None or not isinstance(sums, types.UniTuple):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        values = unpack(builder, args[0], sig.args[0])
        register = values[0].type
        waited = asm(
            builder, f"wgmma.wait_group.sync.aligned {n};", [], [register] * len(values), tied=values,
            collective=True, memory=True,
        )  # fmt: skip
        return tuple_of(context, builder, sig.return_type, waited)

    return sums(sums, newest), codegen
