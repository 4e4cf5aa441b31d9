"""Calls that pose a stored problem: what `find` and `tune` time.

The contract of a stem. The module ``numbaprims/ops/<stem>.py`` has a table beside its ``PROBLEMS``::

    EXAMPLES = {"conv": _example_call}

``_example_call(problem)`` gives ``(name, args, kwargs)``: a public function's name (or a function, where plans pose
the problem) and the arguments with which it poses a problem that equals `problem` (the same key: every field that is
not ``compare=False``).

- `problem` is a ConvProblem, or an object with its attributes that was read from a database: fields marked
  ``compare=False`` may not be looked at, since nobody stores them; a field that holds a dataclass is an object with
  the same attributes.
- Arrays are NumPy arrays made by `numbaprims.ops.examples.array(shape, dtype)`; `find` moves them to a GPU itself.
- ``kwargs`` may hold ``out`` where the problem says so (in place, an order of its own); never otherwise.
- Where one public call poses several problems of the stem (a gradient and that of its weight), the call may pose
  others too: only the one that is asked for is timed.

``tests/test_find_examples.py`` holds every stem to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims import settings
from numbaprims.dispatch import choose as _choose, registry
from numbaprims.dispatch.problem import Problem
from numbaprims.tuning import records


class Call(NamedTuple):
    """A call of a public function."""

    function: str | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        function = self.function
        if isinstance(function, str):
            function = getattr(importlib.import_module("numbaprims"), function)
        return function(*self.args, **self.kwargs)

    @property
    def hollow(self) -> bool:
        """Whether an operand has no elements. The strides of such an array mean nothing, NumPy's own functions do not
        agree on them, so that the call may pose another order than the one that is asked for."""
        return any(getattr(x, "size", 1) == 0 for x in (*self.args, *self.kwargs.values()))

    def on(self, device: str) -> Call:
        """The same call with its NumPy arrays on a device; an array that comes twice is one array there too."""
        kind, index = registry.split(device)
        if kind == "cpu":
            return self
        moved: dict[int, Any] = {}

        def move(x: Any) -> Any:
            if not hasattr(x, "__array_interface__"):
                return x
            if id(x) not in moved:
                moved[id(x)] = registry.memory().to_device(x, device=index)
            return moved[id(x)]

        return Call(
            self.function, tuple(move(x) for x in self.args), {name: move(x) for name, x in self.kwargs.items()}
        )


def example_call(stem: str, problem: Any) -> Call:
    """A public call that poses a problem, or what a database kept of one.

    Raises:
        NotImplementedError: the stem does not say how.
    """
    examples = getattr(importlib.import_module(f"numbaprims.ops.{stem}"), "EXAMPLES", {})
    if stem not in examples:
        raise NotImplementedError(f"numbaprims.ops.{stem} has no EXAMPLES[{stem!r}]: its problems cannot be timed")
    name, args, kwargs = examples[stem](problem)
    return Call(name, tuple(args), dict(kwargs))


def problem_class(stem: str) -> type[Problem]:
    """The class of a stem's problems; ValueError for a stem that does not exist."""
    if not stem.isidentifier():
        raise ValueError(f"there is no stem {stem!r}")
    try:
        importlib.import_module(f"numbaprims.ops.{stem}")
    except ModuleNotFoundError:
        raise ValueError(f"there is no stem {stem!r}") from None
    waiting = list(Problem.__subclasses__())
    for cls in waiting:
        if cls.__dict__.get("stem") == stem:
            return cls
        waiting += cls.__subclasses__()
    raise ValueError(f"there is no stem {stem!r}")


def restore(stem: str, fields: dict[str, Any]) -> Problem:
    """The problem of stored fields.  Its exact strides are those of an example; nothing is computed.

    Raises:
        ValueError: no call of this release poses that problem.
    """
    call = example_call(stem, records.stored(problem_class(stem), fields))
    wanted = records.dump(fields)
    try:
        with settings.trial(_choose.Trial(stem, wanted)):
            call()
    except _choose.Posed as posed:
        return posed.problem
    raise ValueError(f"no call of this release poses the {stem} problem {wanted}")
