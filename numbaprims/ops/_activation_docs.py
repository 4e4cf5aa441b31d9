"""What the docstrings of all activations say alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_FORWARD = {
    "x": "any shape and strides; float64, float32, float16 or bfloat16.",
    "out": "where y goes, of x's shape and dtype; it may be x itself.",
}
_BACKWARD = {
    "dy": "gradient of the loss by y; any strides.",
    "x": "the input of the forward pass, of dy's shape and dtype.",
    "y": "the result of the forward pass, of dy's shape and dtype.",
}
_INDENT = 4 * " "


def documented(function: Function) -> Function:
    """Decorator: put the sections Args, Returns and Raises in front of the example, as far as they are not there.

    A docstring then has the formula, the parameters that its function alone has, and the example. The function
    itself is returned, not a wrapper.
    """
    text = function.__doc__
    if text is None:  # python -OO
        return function
    head, *sections = _sections(text)
    given = dict(section.split(":\n", 1) for section in sections)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    backward = names[0] == "dy"
    if backward:
        inputs = " or ".join(name for name in names if name in ("dy", "x", "y"))
        common = {**_BACKWARD, "out": f"where dx goes; it may be {inputs} itself."}
        returns, raises = "dx, of dy's shape, dtype and library.", "TypeError, ValueError: as `activation_backward`."
    else:
        common = _FORWARD
        returns, raises = "y, of x's shape, dtype and library.", "TypeError, ValueError: as `activation`."
    own = _entries(given.pop("Args", ""))
    arguments = "".join(own.get(name) or f"{_INDENT}{name}: {common[name]}\n" for name in names)
    first = {
        "Args": arguments,
        "Returns": given.pop("Returns", f"{_INDENT}{returns}\n"),
        "Raises": given.pop("Raises", f"{_INDENT}{raises}\n"),
    }
    parts = [head, *(f"{name}:\n{body.rstrip()}\n" for name, body in {**first, **given}.items())]
    function.__doc__ = "\n".join(part.rstrip() + "\n" for part in parts)
    return function


def _sections(text: str) -> list[str]:
    """The text before the first section, then each section with its title, without the docstring's indentation."""
    lines = text.rstrip().splitlines()
    if all(line.startswith(_INDENT) for line in lines[1:] if line.strip()):  # Python 3.13 takes it away itself
        lines[1:] = [line[len(_INDENT) :] for line in lines[1:]]
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.endswith(":") and line[:-1].isalpha():
            parts.append([])
        parts[-1].append(line)
    return ["\n".join(part).rstrip() + "\n" for part in parts]


def _entries(body: str) -> dict[str, str]:
    """The lines of each argument, by its name."""
    found: dict[str, str] = {}
    name = ""
    for line in body.splitlines():
        if line.startswith(_INDENT) and not line.startswith(2 * _INDENT):
            name = line.partition(":")[0].strip()
            found[name] = ""
        found[name] += line + "\n"
    return found
