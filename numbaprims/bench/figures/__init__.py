"""Tables and figures of papers, measured again on this machine: `numbaprims reproduce NAME`.

A module of this package is one of them; its name with "-" for "_" is what the command takes, the first line of its
docstring what the command says of it.  It has

    measure(options, document)     yields after each thing measured, once it stands in document["entries"]
    lines(document)                the printed table, the paper's own numbers beside ours where it states them
    draw(document, path)           the picture

A document also holds the facts about the machine (`bench.results.facts`), so that a saved one can be drawn again.
"""

from __future__ import annotations

import ast
import pkgutil
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module, resources
from typing import Any, Protocol, cast


class Figure(Protocol):
    """What a module of this package offers."""

    def measure(self, options: Namespace, document: dict[str, Any]) -> Iterator[None]: ...
    def lines(self, document: dict[str, Any]) -> list[str]: ...
    def draw(self, document: dict[str, Any], path: str) -> None: ...


def names() -> dict[str, str]:
    """Name -> what it shows, of everything that can be reproduced; nothing is imported for it."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        text = resources.files(__package__).joinpath(f"{module.name}.py").read_text(encoding="utf-8")
        found[module.name.replace("_", "-")] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


def load(name: str) -> Figure:
    """The module of a table or figure.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in names():
        raise ValueError(f"name: {name!r} given, allowed are {', '.join(names())}")
    return cast(Figure, import_module(f"{__package__}.{name.replace('-', '_')}"))
