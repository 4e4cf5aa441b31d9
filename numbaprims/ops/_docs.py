"""What the docstrings of a family of functions say alike stands once: `documented` puts it into each of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_TITLE = re.compile(r"^([A-Z][a-z]+):\n", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\S[^:\n]*):(.*(?:\n {5,}.*)*)", re.MULTILINE)


def documented(*texts: str) -> Callable[[Function], Function]:
    """Decorator: complete a docstring by the sections Args, Returns and Raises of its family.

    The texts are written as in a docstring. What a later one says of a parameter or an exception, or as Returns, stands
    in the place of what an earlier one says; the function's own docstring is the last. Args gets the parameters that
    the function has: first the texts', then its own, then all others under the text of ``*``, and ``out``. Names with
    one text stand together. The function itself is returned, not a wrapper.
    """
    families = [_sections(text)[1] for text in texts]

    def complete(function: Function) -> Function:
        text = function.__doc__
        if text is None:  # python -OO
            return function
        # Python 3.13 takes the indentation away itself, and so does this decorator, where a module is loaded again
        head, own = _sections(text.replace("\n    ", "\n") if text.endswith("\n    ") else text)
        found = dict.fromkeys(("Args", "Returns", "Raises"), "")
        args: dict[str, str] = {}
        raises: dict[str, str] = {}
        for sections in (*families, own):
            args |= (entries := _entries(sections.get("Args", "")))
            raises |= _entries(sections.get("Raises", ""))
            found |= sections
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if wrong := entries.keys() - set(names):
            raise TypeError(f"the docstring of {function.__name__} has {wrong}, which are no parameters")
        args |= {name: args["*"] for name in names if name not in args}
        args = {name: args[name] for name in sorted(args, key="out".__eq__) if name in names}
        found |= {"Args": _lines(args), "Raises": _lines(raises)}
        function.__doc__ = head + "\n\n".join(f"{title}:\n{lines}" for title, lines in found.items()) + "\n"
        return function

    return complete


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """(what stands in front of the first section, title -> lines of each)."""
    head, *found = _TITLE.split(text)
    return head, {title: lines.rstrip() for title, lines in zip(found[::2], found[1::2], strict=True)}


def _entries(lines: str) -> dict[str, str]:
    """Name -> text."""
    return {name: text for names, text in _ENTRY.findall(lines) for name in names.split(", ")}


def _lines(entries: dict[str, str]) -> str:
    groups = itertools.groupby(entries, key=entries.__getitem__)
    return "\n".join(f"    {', '.join(names)}:{text}" for text, names in groups)
