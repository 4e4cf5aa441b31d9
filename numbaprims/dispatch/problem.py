"""A problem: one instance of a primitive (shapes, types, parameters, direction), without its arrays."""

from __future__ import annotations

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True)
class Problem:
    """Base of all problems.  Fields marked ``compare=False`` (exact strides) are for `bind` only: they change neither
    the choice of a solver nor what a database stores."""

    stem: ClassVar[str]

    def key(self) -> tuple[object, ...]:
        """What identifies the problem in databases: the stem and every field that changes the choice."""
        fields = tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)
        return (self.stem, *fields)

    @property
    def empty(self) -> bool:
        """Whether there are no results, or nothing to add up for them: then the last solver alone, the definition, is
        taken, and no solver has to think of it."""
        return False

    def flops(self) -> float:
        """Floating-point (or integer) operations of the definition, not of an algorithm."""
        raise NotImplementedError

    def bytes_moved(self) -> float:
        """Bytes that must be read and written at least once."""
        raise NotImplementedError

    def roundings(self) -> int:
        """Roundings behind one element of the result, at most: the terms of its sum and what follows; of integers the
        units by which it may be off. `numbaprims.dispatch.check` makes a tolerance of it."""
        raise NotImplementedError

    def bench_command(self) -> str:
        """The command that times this problem by itself."""
        raise NotImplementedError
