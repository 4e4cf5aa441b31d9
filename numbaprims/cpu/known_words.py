"""Where native code finds what it compares of known calls: words of records, of tables, of Python's objects."""

from __future__ import annotations

import ctypes
import functools

from numbaprims.cpu.drivers import MOST_FURTHER

# Words of a record: the hash of its table's key; the program, 0 if the caller has to launch it; its workers, and the
# driver of several; whether it is run without Python's lock; the bytes of its scratch memory; how many results, whether
# the first is a new array where the caller gives none, how many arrays in all, whether they are tensors; what has the
# arrays (the type of arrays of the host, else a device); on a device what is launched there; then of each
# array these, its lengths, and its strides.  With -1 dimensions it is what has no array, by its address as the
# dtype.  A new array is made of its own dtype, and as a tensor looked at as another where that is not 0; on a device by
# the function there.
HASH, PROGRAM, WORKERS, DRIVER, LONG, NEEDS, RESULTS, MADE, ARRAYS, TENSORS, OWNER, DEVICE, HEAD = range(13)
SLOT, NDIM, DTYPE, FLAGS, SAME, LOW, HIGH, DENSE, NEW_DTYPE, VIEW, FIXED = range(11)
# Words of a table: the mask of its places, the types of arrays, floats and tuples, NumPy's function, None, what is
# shared with `threads`, the function that finds a record (`known_result`), what is known of tensors, and of other
# arrays on devices, 0 for nothing; then the places.
MASK, NDARRAY, FLOAT, TUPLE, NEW, NOTHING, THREADS, FIND, TORCH, OTHERS, PLACES = range(11)

# Words of what is launched on a device: the function that runs it (`known_devices.runner`), the device's context and
# functions, what gives the stream (0: nothing) or its address, what gives scratch memory (0: none is needed); how many
# launches, words of values, sources and fixed numbers; then of each number its word and bits, of each source these, all
# values, and of each launch these and the places of its values.
RUN, CONTEXT, GET_CURRENT, PUSH, POP, REPLACE, ASK, STREAM, LEND, LAUNCHES, VALUES, SOURCES, FIXES, LAUNCHED = range(14)
CALL, FUNCTION, BLOCKS, SHARED, PARAMETERS, PLACED = 0, 1, 2, 8, 9, 10
VALUE_PLACE, SOURCE, ADD, HOW, SOURCE_WORDS = range(5)
BITS, SINGLE, LOW_HALF, HIGH_HALF, TENSOR_MAP = range(5)
# What that function takes: table, record, words and arrays of the call (handles, results first), the words of arrays
# made of such of a device and their number, room.  And what it says: not run, since a number is another; not, and no
# other record is; an exception is set; results are made, and the caller launches; all is done.
F_TABLE, F_RECORD, F_WORDS, F_HANDLES, F_ARRAYS, F_MADE, F_ROOM, FRAME_WORDS = range(8)
NOT_THIS, UNKNOWN, RAISED, LAUNCH, DONE = range(5)

# Words of an array object, counted from the one with the pointer to its data.
TYPE_AT, NDIM_AT, LENGTHS_AT, STRIDES_AT, DTYPE_AT, FLAGS_AT = -1, 1, 2, 3, 5, 6
# Behind them, of those that are made of another library's array: lengths and strides, and the stream where it may still
# be written, if it has to be that of the call.
OWN_LENGTHS, OWN_STRIDES, USED_AT, OWN_WORDS = 7, 15, 23, 24
MOST_DIMENSIONS = 8
ANY_STREAM = -1
ALIGNED, WRITEABLE = 0x100, 0x400
INT = 0xFFFFFFFF  # ndim and flags are ints in words of 8 bytes
# The words of any object with its type, of a tuple with its length, of a float with its value.
OBJECT_TYPE, SIZE_AT, VALUE_AT = 1, 2, 2

# What hashes of words are multiplied by.
FACTOR = -7046029254386353131

#: Arrays of a call.
MOST_ARRAYS = 7 + MOST_FURTHER
#: Results and tensors of a call.
MOST_RESULTS = 16
MOST_TENSORS = 24
#: Words of scratch memory on the stack; programs whose workers need more take `workspace.native`.
STACK_WORDS = 2560


def signed(x: int) -> int:
    """An integer as native code keeps it in 64 bits."""
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


@functools.cache
def items_word() -> int:
    """Where a tuple keeps its items, in 8-byte words; 0 where they or their number are not found."""
    probe = (object(), object(), object())
    words = (ctypes.c_int64 * 8).from_address(id(probe))
    wanted = [id(each) for each in probe]
    return next((at for at in range(3, 6) if words[at : at + 3] == wanted and words[SIZE_AT] == 3), 0)
