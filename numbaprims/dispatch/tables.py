"""Tables as text that fits the terminal: what `explain` and `find` print."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

LEAST = 80
"""Columns that any terminal has; lines that go to a file are so wide too."""
PACKAGE = Path(__file__).resolve().parent.parent


def terminal_width() -> int:
    """Columns of the terminal, `LEAST` at least."""
    return max(LEAST, shutil.get_terminal_size((LEAST, 24)).columns)


def short_path(path: str) -> str:
    """A file of the package by its place in it, one of elsewhere as it is."""
    return Path(path).relative_to(PACKAGE).as_posix() if Path(path).is_relative_to(PACKAGE) else path


def command_text(command: str, width: int) -> str:
    """A command in lines that a shell takes as one."""
    lines = textwrap.wrap(command, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines)


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, each as wide as its longest cell."""
    table = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in table)


def fitted(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, fold: Sequence[str]) -> str:
    """The same in `width` columns: without empty columns, the cells of those in `fold` broken into lines, one column
    after the other and only as far as needed.

    >>> print(fitted(("solver", "error", "config"), [("direct", "", "mr=8, nv=2")], 14, ("config",)))
    solver  config
    direct  mr=8,
            nv=2
    """
    kept = [i for i in range(len(headings)) if any(row[i] for row in rows) or not headings[i]]
    headings, rows = [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]
    widths = [max(len(line[i]) for line in [headings, *rows]) for i in range(len(headings))]
    for breaks in (True, False):  # between the words of every column, before words are cut
        for name in fold:
            over = sum(widths) + 2 * (len(widths) - 1) - width
            if over > 0 and name in headings:
                i = headings.index(name)
                longest = max(len(piece) for row in rows for piece in _pieces(row[i])) if breaks else 8
                widths[i] = min(widths[i], max(longest, len(name), widths[i] - over))
    broken = []
    for row in rows:
        cells = [_broken(cell, most) for cell, most in zip(row, widths, strict=True)]
        deepest = max(map(len, cells))
        broken += [tuple(cell[k] if k < len(cell) else "" for cell in cells) for k in range(deepest)]
    return aligned(headings, broken)


def _pieces(cell: str) -> list[str]:
    """Where a cell may break: after a space or a slash."""
    return [piece.rstrip() for piece in re.findall(r"[^ /]*[ /]|[^ /]+", cell)] or [""]


def _broken(cell: str, width: int) -> list[str]:
    lines = [""]
    for piece in re.findall(r"[^ /]*[ /]|[^ /]+", cell):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]
