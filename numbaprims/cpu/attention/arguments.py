"""What the kernels of attention take.

Steps of arrays count elements, `_row` from one row of a head to the next, `_col` from one column.  places: address of
int64[heads][arrays], where each head of each array begins.  pack_*: addresses of gemm's packing kernels.  Regions hold
elements of the type that is computed in.
"""

from numbaprims.cpu.simd import Arguments

_STEPS = ("q_row", "q_col", "k_row", "k_col", "v_row", "v_col", "mask_row", "mask_col", "mask_size", "size")
_PACK = ("places", "pack_q", "pack_k", "pack_v", "pack_mask")

# A tile is a block of `block` query rows of a head.
FORWARD = Arguments(
    arrays=("out", "lse", "q", "k", "v", "mask"),
    floats=("scale",),
    ints=(
        "rows", "keys", "width", "values", "causal", "blocks", "block", "key_block",
        "out_row", "out_col", "lse_row", *_STEPS, *_PACK,
    ),
    own=("queries", "sums", "most", "total", "k_panels", "v_panels", "scores", "masked"),
)  # fmt: skip

# The gradient.  A tile is a head of k and v with all query heads that read it; dq, dk and dv are in the type that is
# computed in, a head behind the other.
BACKWARD = Arguments(
    arrays=("dq", "dk", "dv", "dout", "q", "k", "v", "out", "lse", "mask"),
    floats=("scale",),
    ints=(
        "rows", "keys", "width", "values", "causal", "share", "block", "key_block",
        "dout_row", "dout_col", "out_row", "out_col", "lse_row", *_STEPS, *_PACK, "pack_rows",
    ),
    own=(
        "queries", "douts", "outs", "q_rows", "do_rows", "lse_of", "delta_of", "k_panels", "v_panels", "k_rows",
        "scores", "slopes", "masked",
    ),
)  # fmt: skip

# Elements of x, `count` of them, in another type.
NARROW = Arguments(arrays=("out", "x"), ints=("count", "part"))

# Few queries.  A tile is a part of `split` keys of a head of k and v, with all `queries` rows of q that read it; parts:
# of each tile and row its product with v, maximum and sum of exponentials, `part_row` elements.
DECODE = Arguments(
    arrays=("out", "q", "k", "v", "mask"),
    floats=("scale",),
    ints=(
        "rows", "keys", "width", "values", "share", "queries", "splits", "split", "part_row", "places",
        "out_row", "q_row", "q_col", "k_row", "v_row", "mask_row", "mask_col",
    ),
    shared=("parts",),
    own=("scaled_q", "scores"),
)  # fmt: skip
