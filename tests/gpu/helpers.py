"""Arrays on the emulated GPU."""

import numpy as np

from numbaprims import device_views
from numbaprims.gpu.memory import DeviceArray, to_device


def on_device(*shape: int, dtype=np.float32, seed: int = 0) -> tuple[np.ndarray, DeviceArray]:
    values = np.random.default_rng(seed).integers(-9, 9, size=shape, endpoint=True).astype(dtype)
    return values, to_device(values)


class Interface:
    """An array of a library that nobody knows."""

    def __init__(self, array: DeviceArray, version: int = 3, readonly: bool = False, **change):
        facts = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (array.pointer, readonly), "version": version,
            "strides": None if array.strides == device_views.c_strides(array.shape, array.itemsize) else array.strides,
        }  # fmt: skip
        self.__cuda_array_interface__ = facts | change
        self.shape, self.dtype, self.kept = array.shape, array.dtype, array
