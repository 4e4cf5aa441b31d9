"""One drawn call of a public function, and what all draws share: sizes around vectors, layouts in memory, integers."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from helpers import (
    LAYOUTS,
    NUMPY_FLOATS,
    OUT_LAYOUTS,
    PRECISION,
    assert_exact,
    exact_integers,
    from_float64,
    lay_out,
    nan_filled,
    to_float64,
)

from numbaprims import arrays


class Operand(NamedTuple):
    """An array of a call, before it is placed."""

    storage: np.ndarray
    dtype: str
    layout: str

    @property
    def values(self) -> np.ndarray:
        """float64, or int64 of integers."""
        return to_float64(self.storage, self.dtype) if self.dtype in PRECISION else self.storage.astype(np.int64)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.storage.shape)} {self.layout}"


@dataclasses.dataclass
class Call:
    """A call whose Operands are still to be placed; `check(solver, storage)` raises AssertionError."""

    stem: str
    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Operand
    check: Callable[[str, np.ndarray], None]
    plan: Callable[..., Any] | None = None
    """(args, kwargs) -> the arguments of the function's plan and those of the call of it."""
    in_place: str = ""
    """The keyword that is given `out` itself."""
    more: Callable[[Any], None] | None = None
    """Looks at what a function returns beside `out`."""
    given: Callable[[Any, Any], Any] = lambda args, kwargs: (args, kwargs)
    """(args, kwargs) -> what the function takes, where that is containers of arrays."""

    def __str__(self) -> str:
        words = [*map(str, self.args), *(f"{name}={value}" for name, value in self.kwargs.items())]
        if self.in_place:
            words.append(f"{self.in_place}=out")
        return f"{self.function}({', '.join(words)}, out={self.out})"


class Draw:
    """A generator of numbers, and what is made of them."""

    def __init__(self, seed: list[int], vector_bytes: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._vector_bytes = vector_bytes

    def one(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, one_in: int) -> bool:
        return not self.rng.integers(one_in)

    def dtype(self, *more: str) -> str:
        return str(self.one([*NUMPY_FLOATS, "f32", *more]))

    def size(self, dtype: str, least: int = 0) -> int:
        """0 to 3, around a vector, seldom any size up to three of them."""
        W = self._vector_bytes // (arrays.DTYPES[dtype].itemsize if dtype in ("f64", "i8", "u8") else 4)
        if self.chance(8):
            return int(self.rng.integers(least, 3 * W + 2))
        return int(self.one([size for size in (0, 1, 1, 2, 3, W - 1, W, W + 1) if size >= least]))

    def integers(self, shape: tuple[int, ...], dtype: str, sums: int) -> np.ndarray:
        return exact_integers(shape, dtype, max(sums, 4), self.rng)

    def operand(self, values: np.ndarray, dtype: str) -> Operand:
        """Storage of the values in any layout; a broadcast one repeats its first entry, so its values are others."""
        storage = from_float64(values, dtype) if dtype in PRECISION else values.astype(arrays.DTYPES[dtype].storage)
        layout = str(self.one(LAYOUTS if self.chance(2) else ("C",)))
        return Operand(lay_out(storage, layout), dtype, layout if storage.ndim else "C")

    def result(self, shape: tuple[int, ...], dtype: str) -> Operand:
        layout = str(self.one(OUT_LAYOUTS if self.chance(2) else ("C",)))
        return Operand(nan_filled(shape, dtype, layout), dtype, layout)


def exactly(expected: np.ndarray, dtype: str) -> Callable[[str, np.ndarray], None]:
    """The check of a call whose sums are exact in any order."""
    return lambda solver, storage: assert_exact(storage, expected, dtype, vacuous=True)
