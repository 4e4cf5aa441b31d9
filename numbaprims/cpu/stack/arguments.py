"""What the kernels of a sequence take: the depth-first walk, and the block of words of each stage."""

from numbaprims.cpu.simd import Arguments

# A tile is rows [i * rows, (i + 1) * rows) of the result in a plane; those of all `planes` come first, then the next
# rows: what workers write at a time lies apart.  stages: the address of the
# stages' blocks as they are at the start; depth: how many; block: their bytes.  x_n, x_c ...: bytes from image to image
# and from block to block of channels, of which an image has `blocks` of `block` each.  A worker has its own stages'
# blocks, rows of earlier bands (`past`) and two buffers that are swapped.
WALK = Arguments(
    arrays=("out", "x", "parameters", "added_0", "added_1", "added_2", "added_3"),
    ints=(
        "c", "planes", "rows", "depth", "stages", "blocks", "block",
        *(f"{name}_{d}" for name in ("out", "x", "added_0", "added_1", "added_2", "added_3") for d in "nc"),
        "parameters_c",
    ),
    own=("own_stages", "past", "buffer_0", "buffer_1"),
)  # fmt: skip
MOST_ADDED = 4

# A stage's block.  Set once: kernel; height, width: of the input; pitch, past_pitch, out_pitch, added_pitch: bytes from
# row to row; extent, stride, before: of windows, over rows; most: rows of a band; outside: the address of a row of what
# stands for elements outside of the image; shares: of an average, of each row and then of each column; kept: where rows
# of earlier bands lie in the scratch memory; parameter: bytes to the first of its parameters; adds: the first array
# that is added, -1 for none; parameters_step, parameters_channel: elements from one parameter to the next, and from
# channel to channel; pixel and so on: elements from pixel to pixel.
# By the walk: x, the row `fresh` of the input; past, its row `oldest` (rows before `fresh` are read there); out, the
# first row that is computed; begin: the first row of the input; done, ends: rows of the result that are computed, and
# to be computed; unordered: whether a row of the input may hold NaN, which the stage before says; left: channels from
# the first lane's on.
STAGE = Arguments(
    arrays=("out", "x", "past", "outside", "parameters", "shares", "added", "added_next"),
    ints=(
        "fresh", "oldest", "height", "width", "out_width", "pitch", "past_pitch", "out_pitch", "added_pitch",
        "added_next_pitch", "kernel", "extent", "stride", "before", "most", "kept", "parameter", "adds", "begin",
        "done", "ends", "out_height", "parameters_step", "unordered",
        "left", "parameters_channel", "pixel", "out_pixel", "added_pixel", "added_next_pixel",
    ),
)  # fmt: skip
BLOCK_WORDS = -(-STAGE.used // 8) * 8
