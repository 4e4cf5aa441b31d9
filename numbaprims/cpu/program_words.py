"""The words of a program and of a call, as program.py writes and the interpreter reads them."""

from numbaprims.cpu.simd.arguments import ARRAY_SLOTS, FLOAT_SLOT, FLOAT_SLOTS

ARRAYS = ARRAY_SLOTS - 1
"""Arrays that a call gives by itself; further ones come as a list."""
SCRATCH = ARRAY_SLOTS - 1
"""The word of a call that is the address of its scratch memory: first what is shared, then each worker's part."""
WHOLE = FLOAT_SLOT + FLOAT_SLOTS
"""Words of a call that may be the first words of arguments as they stand, which need the room behind them."""
MOST_WORDS = 512
"""Words of arguments that a run may have: they lie on the stack of each worker."""
FURTHER = MOST_WORDS
"""The word of the eighth array."""

PER_WORKER = -1
"""As the chunk of a phase of one tile: one worker runs it, with all workers as its range of tiles."""

# Words of a program: this head (the interpreters for one worker and for several; id(None), which is not the same in
# every process; the words of `threads.shared_address`), then its runs.
ALONE, TOGETHER, NONE, THREADS, RUNS, RUN = range(6)
# Of a run.
R_PHASES, R_STEPS, R_CHUNKS, R_PHASE, R_BLOCKS, R_BLOCK, RUN_WORDS = range(7)
# Of a phase; `one` says whether there is one queue for all workers, `back` whether the last chunk comes first.
H_KERNEL, H_TILES, H_CHUNK, H_CHUNKS, H_ONE, H_BACK, H_ARGS, PHASE_WORDS = range(8)
# Of a block: where it lies among a worker's arguments, whether it begins with the words of the call, words that are
# fixed (from which on, how many times FIXED of them, where they stand), and those that are bound, the ones that move
# from step to step first.
B_ARGS, B_WHOLE, B_FIRST, B_FIXED, B_WORDS, B_BINDS, B_MOVES, B_BIND, BLOCK_WORDS = range(9)
# Of a bound word: words[of the call] + offset + step * stride; a null pointer stays one.
W_SLOT, W_WORD, W_OFFSET, W_STRIDE, BIND_WORDS = range(5)

#: Fixed words that are written at a time.
FIXED = 8
