"""Sums of sums: what keeps the error of a long sum from growing with its length.

An accumulator of float32 adds nothing any more once it holds 2^24 terms of one size.  So none adds more than `TERMS` in
order: a longer sum is cut into chunks, whose sums are added.  Neither depends on the GPU: results would.
"""

from __future__ import annotations

import sys
from typing import Any

TERMS = 1 << 16
"""Additions of one accumulator, a multiple of 64."""
MOST_WORKSPACE = 256 << 20
"""Bytes of the sums of chunks that are there for speed only."""


def longest(problem: Any, at_once: int = 1) -> int:
    """Terms that one accumulator takes, where an instruction adds `at_once` of them; integers are exact."""
    return sys.maxsize if problem.accumulate == "i32" else TERMS * at_once


def chunks_of(k: int, wanted: int, nbytes: int, most: int) -> tuple[int, int]:
    """How many chunks k is cut into, none longer than `most`, and how long one is.  Otherwise they are `wanted`, as
    far as the sums of so many, `nbytes` each, have room."""
    count = max(1, min(wanted, MOST_WORKSPACE // max(1, nbytes)), -(-k // most))
    chunk = -(-max(1, k) // (64 * count)) * 64
    return -(-max(1, k) // chunk), chunk


def too_long(k: int, most: int) -> str | None:
    """Why a solver does not take a sum of k terms, if it does not."""
    return f"it adds at most {most} terms in order, lest digits are lost, and a sum has {k}" if k > most else None


def too_many(nbytes: int, problem: Any) -> str | None:
    """Why the sums of chunks are not kept, if they are not: they are a small part of long operands."""
    if nbytes > max(MOST_WORKSPACE, problem.bytes_moved() / 2):
        return f"the sums of its chunks of k would take {nbytes >> 20} MiB, more than half of what it reads and writes"
    return None
