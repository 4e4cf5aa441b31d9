"""What the kernels of recurrent layers take.

Steps of arrays count elements: `_d` from one direction to the other, `_row` from one sequence of the batch to the next,
`_step` from one time to the next (from one packed row to the next where there is a table of offsets).
"""

from numbaprims.cpu.simd import Arguments

# A step of the time loop.  Tile: a group of units of a direction; `a` (k wide) times the packed weights r, then the
# cell.  numbers: rows of a group's biases and peepholes.  g: the input product, h and a: two states that are swapped,
# `_flip` apart; c: the cell's state; y: the outputs; m: what goes on to the second product of a step.  saved: c of all
# times, or n's recurrent sum.  offsets: packed rows before each time, 0 for none.  scaled: a row of `a` as short
# pairs.  first: the step that a run begins with.  In a wavefront a layer makes the g of a tile, at `tile`, of
# x, rows of `inputs`, and of the packed weights w.
STEP = Arguments(
    arrays=("a", "r", "numbers", "g", "h", "c", "y", "m", "saved", "offsets", "tile", "x", "w"),
    floats=("clip",),
    ints=(
        "k", "n", "hidden", "groups", "kc", "steps", "reverse", "first",
        "a_d", "a_row", "a_flip", "r_d", "numbers_d", "numbers_row", "g_d", "g_row", "g_step", "h_d", "h_row", "h_flip",
        "c_d", "c_row", "y_d", "y_row", "y_step", "m_d", "m_row", "saved_d", "saved_row", "saved_step",
        "inputs", "x_row",
    ),
    own=("sums", "scaled"),
)  # fmt: skip

# Lanes of a wavefront: layers, or directions of one; tile: `many` steps of one.  ended: for each lane the tiles that
# have ended.  first and second: kernels of a step (0: none), product: of the inputs; blocks: where the arguments
# of the first lane lie, in bytes behind these; size: bytes of each lane's.
WAVE = Arguments(
    arrays=("ended",),
    ints=("lanes", "steps", "many", "layers", "product", "first", "second", "blocks", "size"),
)  # fmt: skip

# Weights w (gates * hidden, k) in panels [group][k][gate][units of a group]; gates of `w` from `first` on.
PACK = Arguments(arrays=("panels", "w"), ints=("k", "hidden", "first", "w_row"))

# numbers: b_ih + b_hh of each gate (of a GRU's n apart), then peepholes, rows `row` long.
NUMBERS = Arguments(arrays=("numbers", "b_ih", "b_hh", "peephole"), ints=("hidden", "row"))

# Rows of x into rows of out: row j of `rows` gets row `table[j]` (zeros where that is -1; row j where there is no
# table).  A row is (row // inner, row % inner), whose steps are `_outer` and `_row`.  again: another copy so far
# behind; missing: there is no x, all rows are zeros; second: what is added to x lies so far behind it; adds: out is
# added to.
ROWS = Arguments(
    arrays=("out", "x", "table"),
    ints=(
        "width", "out_inner", "out_outer", "out_row", "out_column", "x_inner", "x_outer", "x_row", "x_column", "again",
        "missing", "second", "adds",
    ),
)  # fmt: skip

# Dropout of rows of x into rows of out, which may be the same: `table` says which row of the padded array each is,
# random are the halves of the seed and of the offset of the stream, to which `layer` is added; compute is the address
# of the kernel of a row.
DROPOUT = Arguments(
    arrays=("out", "x", "table", "random"), floats=("p",), ints=("width", "out_row", "x_row", "layer", "compute")
)  # fmt: skip

# A step of the gradient.  `a` times the packed weights r is what comes from the step after; dy from above; carry what a
# cell hands on beside its gates, and dh_n; dc the same of c.  gates, saved, states: the reserve.  dg: gradients of
# gates before their activation on the side of the inputs, dgh on that of the states; dm: of a projected state, m: what
# was projected.  now: whether `a` is of the step itself.  Rows of dg and the like are packed.
BACK = Arguments(
    arrays=(
        "a", "r", "dy", "carry", "dc", "gates", "saved", "states", "dg", "dgh", "dm", "m", "numbers", "dnumbers",
        "offsets",
    ),
    ints=(
        "k", "n", "hidden", "groups", "kc", "steps", "reverse", "now",
        "a_d", "a_row", "r_d", "numbers_d", "numbers_row", "dy_d", "dy_row", "carry_d", "carry_row", "dc_d", "dc_row",
        "gates_d", "gates_row", "saved_d", "saved_row", "states_d", "states_row", "dg_d", "dg_row", "dgh_d", "dgh_row",
        "dm_d", "dm_row", "m_d", "m_row",
    ),
    own=("sums",),
)  # fmt: skip

# Rows of x to bytes, in blocks at q.
QUANTIZE = Arguments(arrays=("q", "x"), ints=("k", "x_row"))

# The product of rows of bytes and panels of bytes, rows of out (gates, hidden).
PRODUCT = Arguments(arrays=("out", "a", "r"), ints=("k", "rows", "hidden"), own=("sums",))
