"""The CUDA driver's functions that native code calls by their addresses, of an emulated device.

A launch decodes its parameters and goes to the driver's `launch`. What goes wrong there is not raised here: native code
gets a status, and the library then launches once more from Python, which says it in words.
"""

import ctypes
import threading
from typing import Any

from numbaprims.gpu.seam import Native

from . import tensor_map

CONTEXT = 0x1000
_WORD, _INT = ctypes.c_void_p, ctypes.c_uint
_FLOATS = {"f32": ctypes.c_float, "f64": ctypes.c_double}


class NativeSide:
    """The functions, and each thread's stack of contexts; a thread that has pushed none has the device's own current,
    unless `usual` says another."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._local = threading.local()
        self.usual = CONTEXT
        self.launched = 0
        self.raised: list[Exception] = []
        given = (_WORD, *[_INT] * 7, _WORD, ctypes.POINTER(_WORD))
        self._kept = [
            ctypes.CFUNCTYPE(_INT, ctypes.POINTER(_WORD))(self._current),
            ctypes.CFUNCTYPE(_INT, _WORD)(self._push),
            ctypes.CFUNCTYPE(_INT, ctypes.POINTER(_WORD))(self._pop),
            ctypes.CFUNCTYPE(_INT, *given, _WORD)(lambda *all: self._launch(False, *all[:-1])),
            ctypes.CFUNCTYPE(_INT, *given)(lambda *all: self._launch(True, *all)),
            ctypes.CFUNCTYPE(_INT, _WORD, _WORD)(self._replace),
        ]
        self.functions = Native(CONTEXT, *[ctypes.cast(each, _WORD).value or 0 for each in self._kept])

    @property
    def contexts(self) -> list[int]:
        if not hasattr(self._local, "contexts"):
            self._local.contexts = []
        found: list[int] = self._local.contexts
        return found

    def _current(self, place: Any) -> int:
        place[0] = self.contexts[-1] if self.contexts else self.usual
        return 0

    def _push(self, context: int) -> int:
        self.contexts.append(context)
        return 0

    def _pop(self, place: Any) -> int:
        place[0] = self.contexts.pop()
        return 0

    def _launch(
        self, together: bool, number: int | None, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
        stream: int | None, places: Any,
    ) -> int:  # fmt: skip
        if (self.contexts[-1] if self.contexts else self.usual) != CONTEXT:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        self.launched += 1
        kernel = self._driver.kernels[number or 0]
        kinds, values = [], []
        for parameter, place in zip(kernel.module.entry(kernel.entry).parameters, places, strict=False):
            raw = ctypes.string_at(place, parameter.nbytes)
            kinds.append(parameter.type)
            if parameter.type in _FLOATS:
                values.append(_FLOATS[parameter.type].from_buffer_copy(raw).value)
            else:
                values.append(raw if parameter.nbytes > 8 else int.from_bytes(raw, "little"))
        given = (kernel, (gx, gy, gz), (bx, by, bz), shared, stream or 0, tuple(kinds), tuple(values))
        try:
            self._driver.launch(*given, True) if together else self._driver.launch(*given)
        except Exception as error:  # anything that a test's launch raises
            self.raised.append(error)
            return 719  # CUDA_ERROR_LAUNCH_FAILED
        return 0

    def _replace(self, place: int, address: int) -> int:
        if place % 64:
            return 1  # CUDA_ERROR_INVALID_VALUE
        tensor_map.move(place, address)
        return 0
