"""What the emulator can find wrong with a kernel. Every message names the block, the thread and the PTX line."""


class EmulatorError(RuntimeError):
    """The root: a kernel did what a GPU does not define, or what the emulator does not know."""


class Unsupported(EmulatorError):
    """An instruction, or a form of one, that the emulator does not model."""


class MemoryFault(EmulatorError):
    """An access outside every allocation, or a misaligned one."""


class UninitialisedRead(EmulatorError):
    """A read of memory that nobody has written, or of a copy that has not completed."""


class DataRace(EmulatorError):
    """Two threads touch one address, one of them writes, and nothing orders the two."""


class Divergence(EmulatorError):
    """A collective instruction or a barrier that some of its threads can no longer reach."""


class Deadlock(Divergence):
    """Every thread that is left waits for something that no thread will do."""


class Trap(EmulatorError):
    """The kernel executed `trap`, or an assertion of its own failed."""
