"""Troubles of tuning databases, said once."""

from __future__ import annotations

import warnings

_said: set[tuple[str, str]] = set()


def warn_once(path: str, message: str) -> None:
    """One warning a process for one trouble of one database."""
    if (path, message) not in _said:
        _said.add((path, message))
        warnings.warn(f"tuning database {path}: {message}", RuntimeWarning, stacklevel=2)
