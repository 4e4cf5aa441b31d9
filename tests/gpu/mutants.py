"""Planted mistakes in kernels: small changes of their PTX, each of which the emulator or the results must catch.

    caught, missed = hunt(lambda: numbaprims.gemv(a, x), check)

runs the call once to learn which lines of PTX it executes, then once for each mutant of them: a barrier removed, a wait
that waits for one group less, a bound off by one, a lane mask or a lane wrong, an address off by an element. Nobody
catches a mutant that computes the same; a test names those, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ptx_emulator import EmulatorError
from ptx_emulator.driver import EmulatedDriver, LoadedKernel
from ptx_emulator.machine import Checks

from numbaprims.gpu import driver


@dataclass(frozen=True)
class Mutant:
    """One changed line of a kernel's PTX."""

    kind: str
    entry: str
    line: int
    before: str
    after: str
    ptx: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.entry} line {self.line}: {self.before} -> {self.after or 'nothing'}"


def _one_more(match: re.Match[str]) -> str:
    return f"{match.group(1)}{int(match.group(2)) + 1}{match.group(3)}"


def _next_bound(match: re.Match[str]) -> str:
    other = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "lo": "ls", "hi": "hs", "ls": "lo", "hs": "hi"}
    return f"setp.{other[match.group(1)]}.{match.group(2)}"


def _next_element(match: re.Match[str]) -> str:
    """Off by one element of the access, so that it stays aligned."""
    opcode, middle, base, offset = match.groups()
    count = 4 if ".v4" in opcode else 2 if ".v2" in opcode else 1
    width = int(re.findall(r"\d+", opcode)[-1]) // 8 * count
    return f"{opcode}{middle}[{base}+{int(offset or 0) + width}]"


#: kind of mistake -> (pattern in a line of PTX, what stands there instead)
MISTAKES: dict[str, tuple[str, Any]] = {
    "barrier removed": (r"^\s*bar\.sync\b[^;]*;", ""),
    "syncwarp removed": (r"^\s*bar\.warp\.sync\b[^;]*;", ""),
    "wait for one group less": (r"(cp\.async\.wait_group\s+)(\d+)(;)", _one_more),
    "wait removed": (r"cp\.async\.wait_all;", ""),
    "commit removed": (r"cp\.async\.commit_group;", ""),
    "bound off by one": (r"setp\.(lt|le|gt|ge|lo|ls|hi|hs)\.([su](?:32|64))", _next_bound),
    "lane mask": (r"(shfl\.sync\.\w+\.b32.*,\s*)(-1|0xffffffff|4294967295)(;)", r"\g<1>0x7fffffff\3"),
    "half a warp": (r"(shfl\.sync\.(?:bfly|down)\.b32.*,\s*)(31|0x1f)(,)", r"\g<1>15\3"),
    "load off by one": (r"(ld\.(?:global|shared)[.\w:]*)(\s+.*)\[([%\w$]+)(?:\+(-?\d+))?\]", _next_element),
    "store off by one": (r"(st\.(?:global|shared)[.\w:]*)(\s+)\[([%\w$]+)(?:\+(-?\d+))?\]", _next_element),
    "release removed": (r"red\.release\.gpu[^;]*;", ""),
    "acquire removed": (r"(ld\.)acquire\.gpu\.", r"\1"),
    "fence removed": (r"fence\.proxy\.async[^;]*;", ""),
}


def mutants(ptx: str, entry: str, executed: set[int], kinds: tuple[str, ...], most: int) -> Iterator[Mutant]:
    """Up to `most` mutants of each kind, spread evenly over the lines that were executed."""
    lines = ptx.split("\n")
    for kind in kinds:
        pattern, replacement = MISTAKES[kind]
        places = [number - 1 for number in sorted(executed) if re.search(pattern, lines[number - 1])]
        chosen = sorted({places[round(step)] for step in np.linspace(0, len(places) - 1, most)}) if places else []
        for number in chosen:
            after = re.sub(pattern, replacement, lines[number], count=1)
            changed = "\n".join([*lines[:number], after, *lines[number + 1 :]])
            yield Mutant(kind, entry, number + 1, lines[number].strip(), after.strip(), changed)


class MutatingDriver(EmulatedDriver):
    """An emulated GPU that loads some kernels changed, and remembers the PTX of all."""

    def __init__(self, changed: dict[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.changed = changed
        self.ptx: dict[str, str] = {}

    def load(self, ptx: str, cubin: bytes, entry: str, dynamic_shared: int) -> LoadedKernel:
        self.ptx[entry] = ptx
        return super().load(self.changed.get(entry, ptx), cubin, entry, dynamic_shared)


def hunt(
    call: Callable[[], Any],
    check: Callable[[Any], None],
    most: int = 3,
    kinds: tuple[str, ...] = tuple(MISTAKES),
    **options: Any,
) -> tuple[list[Mutant], list[Mutant]]:
    """Plant mistakes in what `call` launches; give those that were caught, and those that neither an error of the
    emulator nor `check(result)` noticed."""
    honest = MutatingDriver({}, **options)
    with driver.use(honest):
        check(call())
    steps = 100 * max(1000, honest.steps)  # a loop that misses its end
    caught, missed = [], []
    for entry, ptx in honest.ptx.items():
        for mutant in mutants(ptx, entry, honest.lines.get(entry, set()), kinds, most):
            place = MutatingDriver({entry: mutant.ptx}, checks=Checks(max_steps=steps), **options)
            try:
                with driver.use(place):
                    check(call())
            except (EmulatorError, AssertionError):
                caught.append(mutant)
            else:
                missed.append(mutant)
    return caught, missed
