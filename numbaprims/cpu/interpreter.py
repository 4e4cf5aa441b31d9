"""What runs programs: one interpreter in native code, for the calling thread and for each worker of a parallel region.

The phases of a whole call are numbered 1, 2, 3 ... (*turns*).  Workers of one region share, on the caller's stack:

- for each worker, in a line of its own, the chunks that it has finished since the start.  A turn is over when their sum
  reaches the chunks of all turns up to it, which the program says.  (One counter for all took 280 to 350 ns a phase,
  this takes 210 to 280; a region for each phase takes 1,500.)
- for each worker a queue: turn << 32 | chunks taken.  A word of an older turn stands for "none taken", so nobody resets
  a queue, and a worker that sleeps through turns can take nothing of one that is over.

A worker takes chunks of its own part, in order, and then of the others': a thread that the machine holds up does fewer.
Who takes which does not change results, because tiles are independent; but a tile meets the worker that had it in the
phase before and in the last call, so that its lines are in that core's cache.

Nobody waits for a worker that has not come, only for chunks that somebody has taken: a region that is given fewer
threads than it asked for ends all the same.  Who comes late finds the running turn by what is finished.
"""

from __future__ import annotations

import functools

from numba import types

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program_words import (
    B_ARGS,
    B_BIND,
    B_BINDS,
    B_FIRST,
    B_FIXED,
    B_MOVES,
    B_WHOLE,
    B_WORDS,
    BIND_WORDS,
    BLOCK_WORDS,
    FIXED,
    H_ARGS,
    H_BACK,
    H_CHUNK,
    H_CHUNKS,
    H_KERNEL,
    H_ONE,
    H_TILES,
    MOST_WORDS,
    PER_WORKER,
    PHASE_WORDS,
    R_BLOCK,
    R_BLOCKS,
    R_CHUNKS,
    R_PHASE,
    R_PHASES,
    R_STEPS,
    RUN,
    RUN_WORDS,
    RUNS,
    W_OFFSET,
    W_SLOT,
    W_STRIDE,
    W_WORD,
    WHOLE,
)
from numbaprims.cpu.simd.arguments import STEP_SLOT, call_range, load_word, stack_words, store_word
from numbaprims.cpu.simd.atomics import (
    add_release,
    load_acquire,
    load_relaxed,
    relax,
    store_release,
    swap_if,
    yield_cpu,
)

# Words of a call: the program, what workers share, then the words that arguments are bound to (program.py).
C_PROGRAM, C_SHARED, C_WORDS = 0, 1, 2

# A line of the cache and its neighbour, which is fetched with it.
LINE = 16
#: With more workers than queues neighbours share one, since whoever has nothing left looks into all of them.
QUEUES = 16
SHARED_WORDS = 2 * QUEUES * LINE
#: Looks at the others' lines before the CPU is given to another thread; 1000 take some 40 us.
SPIN = 1000


@helper
def take(queue, turn, count):  # type: ignore[no-untyped-def]
    """The next chunk of a queue in this turn, or -1."""
    got = -1
    while True:
        word = load_relaxed(queue)
        at = word >> 32
        taken = word & 0xFFFFFFFF
        if at < turn:
            taken = 0
        if at > turn or taken >= count:
            break
        if swap_if(queue, word, (turn << 32) | (taken + 1)):
            got = taken
            break
    return got


@helper
def finished(done, lines):  # type: ignore[no-untyped-def]
    """Chunks that are finished; what their workers wrote is seen from here on."""
    total = 0
    for line in range(lines):
        total += load_acquire(done + 8 * LINE * line)
    return total


@helper
def run_turn(kernel, args, worker, workers, lines, parts, done, turn, tiles, chunk, chunks, back):  # type: ignore[no-untyped-def]
    """What this worker gets of a turn's chunks: its own, then those of others."""
    did = 0
    own = worker * parts // workers
    queues = done + 8 * LINE * QUEUES
    for k in range(parts):
        q = (own + k) % parts
        lo = q * chunks // parts
        count = (q + 1) * chunks // parts - lo
        while True:
            c = take(queues + 8 * LINE * q, turn, count)
            if c < 0:
                break
            first = (lo + c + back * (count - 1 - 2 * c)) * chunk  # as a branch it would be two loops
            call_range(kernel, args, worker, first, min(first + chunk, tiles))
            did += 1
    if did != 0:
        mine = done + 8 * LINE * (worker % QUEUES)
        if workers <= QUEUES:
            store_release(mine, load_relaxed(mine) + did)  # one writer: no locked instruction waits for the line
        else:
            add_release(mine, did)


@helper
def wait_for(done, lines, least):  # type: ignore[no-untyped-def]
    """Until so many chunks are finished: spin shortly, then let others run."""
    looks = 0
    while finished(done, lines) < least:
        looks += 1
        if looks < 16:
            continue  # a pause takes 140 cycles, as long as a line takes from core to core
        if looks < SPIN:
            relax()
        else:
            yield_cpu()


@helper
def bind(words, block, args, step, count):  # type: ignore[no-untyped-def]
    """Set the first `count` bound words of a block."""
    at = load_word(block, B_BIND)
    for _ in range(count):
        value = load_word(words, load_word(at, W_WORD))
        if value != 0:
            value += load_word(at, W_OFFSET) + step * load_word(at, W_STRIDE)
        store_word(args, load_word(at, W_SLOT), value)
        at += 8 * BIND_WORDS


@helper
def fill(words, block, args, step):  # type: ignore[no-untyped-def]
    """All words of a block."""
    if load_word(block, B_WHOLE) != 0 and args != words:
        for i in range(WHOLE):
            store_word(args, i, load_word(words, i))
    fixed, to = load_word(block, B_WORDS), args + 8 * load_word(block, B_FIRST)
    for _ in range(load_word(block, B_FIXED)):
        # loops of one word become calls of memcpy, which took 40 ns of a call
        for i in range(FIXED):
            store_word(to, i, load_word(fixed, i))
        fixed += 8 * FIXED
        to += 8 * FIXED
    bind(words, block, args, step, load_word(block, B_BINDS))


@functools.cache
def make_interpreter(alone: bool) -> RangeKernel:
    """`interpret(call, worker, workers, 0)`: a worker's part of a call; the whole of it where it is `alone`."""

    @range_kernel("interpret", types.int64, spec=(alone, MOST_WORDS, QUEUES, SPIN))
    def interpret(call, worker, team, unused):  # type: ignore[no-untyped-def]
        workers = 1 if alone else team
        program = load_word(call, C_PROGRAM)
        words = call + 8 * C_WORDS
        done = load_word(call, C_SHARED)
        own = stack_words(MOST_WORDS)
        lines = min(workers, QUEUES)
        before = 0  # chunks of all turns before this one
        turn = 1
        for r in range(load_word(program, RUNS)):
            run = program + 8 * (RUN + RUN_WORDS * r)
            phases, steps = load_word(run, R_PHASES), load_word(run, R_STEPS)
            phase_at, block_at = load_word(run, R_PHASE), load_word(run, R_BLOCK)
            blocks, chunks_of_step = load_word(run, R_BLOCKS), load_word(run, R_CHUNKS)
            step, base = 0, own
            if not alone:  # who comes late leaves out the steps that are over
                over = finished(done, lines) - before
                if over > 0:
                    step = min(steps, over // chunks_of_step)
            before += step * chunks_of_step
            turn += step * phases
            if alone and blocks == 1 and load_word(block_at, B_WHOLE) != 0:
                # the arguments begin with the words of the call as they stand; to copy them took 20 ns, since vectors
                # are loaded before the single words that were stored there have left the core
                base = words
            if step < steps:
                for b in range(blocks):
                    block = block_at + 8 * BLOCK_WORDS * b
                    fill(words, block, base + load_word(block, B_ARGS), step)
            first = step
            while step < steps:
                for b in range(blocks):
                    block = block_at + 8 * BLOCK_WORDS * b
                    args = base + load_word(block, B_ARGS)
                    if step != first:
                        bind(words, block, args, step, load_word(block, B_MOVES))
                    store_word(args, STEP_SLOT, step)
                for p in range(phases):
                    phase = phase_at + 8 * PHASE_WORDS * p
                    kernel, tiles = load_word(phase, H_KERNEL), load_word(phase, H_TILES)
                    args = base + load_word(phase, H_ARGS)
                    if tiles == PER_WORKER:
                        tiles = workers
                    chunks, back = load_word(phase, H_CHUNKS), load_word(phase, H_BACK)
                    if alone and back == 0:
                        call_range(kernel, args, 0, 0, tiles)
                    elif alone:
                        chunk = load_word(phase, H_CHUNK)
                        for c in range(chunks):
                            first = (chunks - 1 - c) * chunk
                            call_range(kernel, args, 0, first, min(first + chunk, tiles))
                    else:
                        if finished(done, lines) < before + chunks:
                            chunk = max(load_word(phase, H_CHUNK), 1)
                            if chunks == 1:
                                chunk = tiles
                            parts = 1 if load_word(phase, H_ONE) != 0 else lines
                            run_turn(
                                kernel, args, worker, workers, lines, parts, done, turn, tiles, chunk, chunks, back
                            )
                            wait_for(done, lines, before + chunks)
                        before += chunks
                        turn += 1
                step += 1

    return interpret
