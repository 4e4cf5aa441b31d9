"""Rates of this machine that `numbaprims calibrate` found: a small file for each CPU, beside the tuning database.

A home directory may serve several machines, so the file's name is the CPU's fingerprint, which stands in the file
too. It appears whole or not at all; whatever else is wrong with it costs one warning.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from numbaprims.kernel_cache import make_private
from numbaprims.tuning import database
from numbaprims.tuning.trouble import warn_once

FORMAT = 1
LIMIT = 1 << 16


def path_of(fingerprint: str) -> str:
    """The file of a CPU's rates; "" where the settings want no database, or no home directory is known."""
    name = "".join(c if c.isalnum() or c in "_-." else "_" for c in fingerprint)
    path = database.user_path()
    return os.path.join(os.path.dirname(path), f"rates-{name}.json") if os.path.isabs(path) else ""


def load(path: str, fingerprint: str) -> dict[str, Any] | None:
    """The rates in a file; None, with a warning where there is one, if it does not hold those of this CPU."""
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            document = json.loads(file.read(LIMIT))
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}, the one that this release knows")
        if document.get("fingerprint") != fingerprint:
            raise ValueError(f"it belongs to another CPU, {document.get('fingerprint')!r:.99}")
        if not isinstance(document.get("rates"), dict):
            raise ValueError("it holds no rates")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        warn_once(path, f"it is not used: {error}")
        return None
    rates: dict[str, Any] = document["rates"]
    return rates


def store(path: str, fingerprint: str, rates: Mapping[str, Any]) -> bool:
    """Keep the rates of a CPU; False, with a warning, where they cannot be written."""
    document = {"format": FORMAT, "fingerprint": fingerprint, "rates": dict(rates)}
    temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        make_private(os.path.dirname(path))
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        warn_once(path, f"it cannot be written: {error}")
        return False
    return True


def forget(path: str) -> bool:
    """Remove the rates of a CPU; False where there were none.

    Raises:
        OSError: the file cannot be removed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
