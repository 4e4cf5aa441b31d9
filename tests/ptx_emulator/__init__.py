"""Runs the PTX of GPU kernels without a GPU, and looks for what a GPU would not tell.

    from ptx_emulator import launch
    launch(kernel, grid, block, out, x, n)      # a GpuKernel or PTX text; NumPy arrays are updated in place

Every thread of every block is computed, vectorised over NumPy. Found and reported with block, thread and PTX line:
accesses outside an array, misaligned accesses, reads of what nobody wrote, data races in shared and global memory,
barriers and collective instructions that not all threads reach, deadlocks. `EmulatedDriver` is the same behind the
library's driver seam. docs/ptx-emulator.md says what is covered and what is not.
"""

from .errors import (
    DataRace as DataRace,
    Deadlock as Deadlock,
    Divergence as Divergence,
    EmulatorError as EmulatorError,
    MemoryFault as MemoryFault,
    Trap as Trap,
    UninitialisedRead as UninitialisedRead,
    Unsupported as Unsupported,
)
from .launch import Tiled as Tiled, launch as launch
from .machine import ALL_CHECKS as ALL_CHECKS, NO_CHECKS as NO_CHECKS, Checks as Checks
