"""The devices of this process: which driver stands for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from numbaprims import forks
from numbaprims.gpu.seam import Driver as Driver, NoGpu as NoGpu

_drivers: dict[int, Driver] = {}
_lock = forks.lock()


def current(device: int = 0) -> Driver:
    """The driver of a device; the first use opens the device.

    Raises:
        NoGpu: there is none, or no CUDA packages; in words.
    """
    found = _drivers.get(device)
    return _open(device) if found is None else found


def _open(device: int) -> Driver:
    with _lock:
        found = _drivers.get(device)
        if found is None:
            if any(driver.kind != "cuda" for driver in _drivers.values()):
                raise NoGpu(
                    f"device {device} is not there: {', '.join(map(repr, _drivers.values()))} stand in its place"
                )
            from numbaprims.gpu.cuda_driver import CudaDriver

            found = _drivers[device] = CudaDriver(device)
        return found


def count() -> int:
    """How many devices there are.

    Raises:
        NoGpu: none, in words.
    """
    if any(driver.kind != "cuda" for driver in _drivers.values()):
        return len(_drivers)
    from numbaprims.gpu.cuda_driver import device_count

    return device_count()


def installed() -> tuple[Driver, ...]:
    """The drivers in use so far; opens none."""
    return tuple(_drivers.values())


@contextmanager
def use(*drivers: Driver) -> Iterator[None]:
    """Put other drivers (the emulator) in the place of the machine's GPUs inside a ``with`` block, for all threads.

    Each says by its `device` which index it stands for.  Nothing of the GPUs is opened inside the block.
    """
    with _lock:
        before = dict(_drivers)
        _drivers.clear()
        _drivers.update({driver.device: driver for driver in drivers})
    try:
        yield
    finally:
        with _lock:
            _drivers.clear()
            _drivers.update(before)
