"""What the kernels of attention take.

Steps of arrays count elements, `_row` from one row of a head to the next, `_col` from one column.  places: address of
int64[heads][arrays], where each head of each array begins.  pack_*: addresses of gemm's packing kernels.  The places of
`*_at` are elements (of the type that is computed in) of a worker's scratch memory, which begins at `room`.
"""

from numbaprims.cpu.simd import Arguments

_STEPS = ("q_row", "q_col", "k_row", "k_col", "v_row", "v_col", "mask_row", "mask_col", "mask_size", "size")
_PACK = ("places", "pack_q", "pack_k", "pack_v", "pack_mask")

# A tile is a block of `block` query rows of a head.
FORWARD = Arguments(
    arrays=("out", "lse", "q", "k", "v", "mask", "room"),
    floats=("scale",),
    ints=(
        "rows", "keys", "width", "values", "causal", "blocks", "block", "key_block", "room_size",
        "out_row", "out_col", "lse_row", *_STEPS, *_PACK,
        "q_at", "o_at", "most_at", "sum_at", "k_at", "v_at", "s_at", "mask_at",
    ),
)  # fmt: skip

# The gradient.  A tile is a head of k and v with all query heads that read it; dq, dk and dv are in the type that is
# computed in, a head behind the other.
BACKWARD = Arguments(
    arrays=("dq", "dk", "dv", "dout", "q", "k", "v", "out", "lse", "mask", "room"),
    floats=("scale",),
    ints=(
        "rows", "keys", "width", "values", "causal", "share", "block", "key_block", "room_size",
        "dout_row", "dout_col", "out_row", "out_col", "lse_row", *_STEPS, *_PACK, "pack_rows",
        "q_at", "do_at", "o_at", "q_rows_at", "do_rows_at", "lse_at", "delta_at", "k_at", "v_at", "k_rows_at", "s_at",
        "t_at", "mask_at",
    ),
)  # fmt: skip

# Elements of x, `count` of them, in another type.
NARROW = Arguments(arrays=("out", "x"), ints=("count", "part"))

# Few queries.  A tile is a part of `split` keys of a head of k and v, with all `queries` rows of q that read it; parts:
# of each tile and row its product with v, maximum and sum of exponentials, `part_row` elements.
DECODE = Arguments(
    arrays=("out", "parts", "q", "k", "v", "mask", "room"),
    floats=("scale",),
    ints=(
        "rows", "keys", "width", "values", "share", "queries", "splits", "split", "part_row", "room_size", "places",
        "out_row", "q_row", "q_col", "k_row", "v_row", "mask_row", "mask_col", "q_at", "s_at",
    ),
)  # fmt: skip
