"""The entry of calls that come from a user's own `@njit` code: it finds a record and runs it.

A *site* stands for all calls of one function with arguments of the same types.  Its table holds a *record* for each
kind of arrays that has come: lengths, strides, integers of the call, and which input is the result's very memory.  A
record says which programs (drivers.py) to run, what goes into each slot of their arguments, and how much scratch
memory they need.  All of it runs in the calling thread: no Python, no GIL, no lock.  Without a record the entry says
so in the block, and the call site asks Python for one (call_sites.py).
"""

from __future__ import annotations

import functools

from numba import types

from numbaprims.cpu.drivers import CALL_WORDS
from numbaprims.cpu.interpreter import C_PROGRAM, C_WORDS
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.known_words import FACTOR
from numbaprims.cpu.program_words import ALONE, SCRATCH
from numbaprims.cpu.simd.arguments import Arguments, call_range, load_word, stack_words, store_word
from numbaprims.cpu.simd.call_sites import (
    ARRAYS_AT,
    FLOATS_AT,
    HASH,
    KEY_AT,
    KEYS,
    PUBLISH_AT,
    PUBLISH_VALUE,
    SITE_TABLE,
    STATUS,
    publish_word,
    published_word,
)

# Words of a record: this head; the key; of each array whether it must be the result itself, and the bytes that it
# takes, counted from its first element; then the launches: a program, how many words of its call are set, and of each
# which one, to what array or float of this call (to a temporary array or to none), and bytes from there or the word
# itself.  Scratch memory begins with the temporary arrays, which hold what one launch leaves for the next.
R_HASH, R_KEYS, R_ARRAYS, R_LAUNCHES, R_SCRATCH, R_TEMPORARY, R_KEY = 0, 1, 2, 3, 4, 5, 6
RELATION = 3
L_PROGRAM, L_WORDS, LAUNCH = 0, 1, 2
W_WORD, W_FROM, W_VALUE, WORD = 0, 1, 2, 3
NOTHING, TEMPORARY, FLOAT = -1, 1 << 15, 1 << 16
# Scratch memory on the stack; more than that is malloc's, whose blocks stay in the process after the first.
_STACK_WORDS = 2048
ALIGN = 64

_malloc = types.ExternalFunction("malloc", types.int64(types.int64))
_free = types.ExternalFunction("free", types.void(types.int64))


@functools.cache
def make_entry() -> RangeKernel:
    """`entry(0, site, block, record)`: do the call of a block, by the record that is given or one of the site's."""
    scratch_bytes = 8 * _STACK_WORDS

    @range_kernel("call_site_entry", Arguments(arrays=("none",)).types(), spec=(_STACK_WORDS,))
    def entry(args, site, block, given):  # type: ignore[no-untyped-def]
        record = given
        if record != 0:
            publish_word(load_word(block, PUBLISH_AT), load_word(block, PUBLISH_VALUE))
        else:
            keys = block + 8 * KEY_AT
            count = load_word(block, KEYS)
            digest = count
            for i in range(count):
                digest = (digest ^ load_word(keys, i)) * FACTOR
                digest = digest ^ (digest >> 29)
            store_word(block, HASH, digest)
            table = published_word(site + 8 * SITE_TABLE)
            mask = load_word(table, 0)
            place = digest & mask
            while True:
                candidate = published_word(table + 8 + 8 * place)
                if candidate == 0:
                    break
                fits = load_word(candidate, R_HASH) == digest
                if fits:
                    for i in range(count):
                        if load_word(candidate, R_KEY + i) != load_word(keys, i):
                            fits = False
                            break
                if fits:
                    relations = candidate + 8 * (R_KEY + count)
                    out = load_word(block, ARRAYS_AT)
                    low, high = out + load_word(relations, 1), out + load_word(relations, 2)
                    for k in range(1, load_word(candidate, R_ARRAYS)):
                        at = relations + 8 * RELATION * k
                        data = load_word(block, ARRAYS_AT + k)
                        if load_word(at, 0) != 0:
                            if data != out:
                                fits = False
                                break
                        elif data + load_word(at, 1) < high and low < data + load_word(at, 2):
                            fits = False
                            break
                if fits:
                    record = candidate
                    break
                place = (place + 1) & mask
        if record == 0:
            store_word(block, STATUS, 1)
            return
        store_word(block, STATUS, 0)
        call = stack_words(CALL_WORDS)
        words = call + 8 * C_WORDS
        scratch = stack_words(_STACK_WORDS)
        needed = load_word(record, R_SCRATCH)
        allocated = 0
        if needed > scratch_bytes:
            allocated = _malloc(needed + ALIGN)
            scratch = (allocated + ALIGN - 1) // ALIGN * ALIGN
        launch = record + 8 * (R_KEY + load_word(record, R_KEYS) + RELATION * load_word(record, R_ARRAYS))
        for _ in range(load_word(record, R_LAUNCHES)):
            program = load_word(launch, L_PROGRAM)
            store_word(call, C_PROGRAM, program)
            store_word(words, SCRATCH, scratch + load_word(record, R_TEMPORARY))
            count = load_word(launch, L_WORDS)
            launch += 8 * LAUNCH
            for _word in range(count):
                which, value = load_word(launch, W_FROM), load_word(launch, W_VALUE)
                if which >= FLOAT:
                    value = load_word(block, FLOATS_AT + which - FLOAT)
                elif which == TEMPORARY:
                    value += scratch
                elif which != NOTHING:
                    value += load_word(block, ARRAYS_AT + which)
                store_word(words, load_word(launch, W_WORD), value)
                launch += 8 * WORD
            call_range(load_word(program, ALONE), call, 0, 1, 0)
        if allocated != 0:
            _free(allocated)

    return entry
