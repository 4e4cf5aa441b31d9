"""Operands of instructions: readers, writers and addresses, and where variables and parameters lie."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from . import errors
from .dtypes import FLOATS, NUMPY, SIGNED, UNSIGNED, immediate, register_type, width
from .inline import call_parameters
from .machine import Batch, SharedLayout
from .parse import Function, Instruction, Module

Reader = Callable[[Batch], Any]
Writer = Callable[[Batch, Any], None]

SPACES = ("global", "shared", "local", "const", "param")
_WIDE_SPECIAL = ("%clock64", "%globaltimer", "%gridid")
_SHARED_GAP = 16  # bytes left unallocated after each shared variable


def space_of(ins: Instruction) -> str:
    """The state space among the modifiers: shared::cta counts as shared; "" is generic."""
    for word in ins.modifiers:
        if word.partition("::")[0] in SPACES:
            return word.partition("::")[0]
    return ""


class Context:
    """What a builder may ask: readers, writers and addresses of operands."""

    def __init__(self, function: Function, module: Module) -> None:
        self.function, self.module = function, module
        self.registers: list[str] = []
        self.number: dict[str, int] = {}
        self.special: dict[str, int] = {}
        self.slots: list[tuple[int, type[np.generic]]] = []
        self.slot_of: dict[tuple[int, type[np.generic]], int] = {}
        self.local_addresses, self.local_bytes = _local_layout(module)
        self.used: set[str] = set()
        self.constants = {n for n, v in module.variables.items() if v.space in ("global", "const")}
        self.shared_fixed = shared_layout(module, 0).addresses
        self.parameters = _parameter_layout(function)
        self.call_slots = call_parameters(function)
        for name, kind in function.registers.items():
            self._register(name, kind)
        for name, kind in self.call_slots.items():
            self._register(name, kind)

    def _register(self, name: str, kind: str) -> int:
        self.number[name] = len(self.registers)
        self.registers.append(kind)
        return self.number[name]

    def is_register(self, name: str) -> bool:
        return name in self.number

    def slot(self, name: str, kind: type[np.generic]) -> int:
        """The view of a register as a NumPy type of its own width."""
        key = (self.number[name], kind)
        if key not in self.slot_of:
            self.slot_of[key] = len(self.slots)
            self.slots.append(key)
        return self.slot_of[key]

    def raw(self, name: str) -> int:
        return self.slot(name, register_type(self.registers[self.number[name]]))

    # ------------------------------------------------------------------ operands
    def read(self, operand: str, kind: str) -> Reader:
        """A reader of the operand as PTX type `kind`; a wider register gives its low bits."""
        if operand.startswith("!"):
            inner = self.read(operand[1:], kind)
            return lambda batch: ~inner(batch)
        if operand.startswith("-") and self.is_register(operand[1:]):
            inner = self.read(operand[1:], kind)
            return lambda batch: -inner(batch)
        if operand.startswith("%") and operand not in self.number:
            self._special(operand)
        if operand in self.number:
            return self._read_register(operand, kind)
        constant = immediate(operand, kind)
        if constant is not None:
            return lambda batch: constant
        if operand == "WARP_SZ":
            warp = NUMPY[kind](32)
            return lambda batch: warp
        return self._read_address(operand, kind)

    def _special(self, operand: str) -> None:
        self.special[operand] = self._register(operand, "u64" if operand in _WIDE_SPECIAL else "u32")

    def _read_register(self, name: str, kind: str) -> Reader:
        own = self.registers[self.number[name]]
        target = NUMPY[kind]
        if own == "pred" or kind == "pred":
            if own != kind:
                raise errors.Unsupported(f"{name} of type {own} read as {kind}")
            slot = self.slot(name, np.bool_)
            return lambda batch: batch.values[slot][batch.active]
        if width(own) == width(kind):
            slot = self.slot(name, target)
            return lambda batch: batch.values[slot][batch.active]
        slot = self.raw(name)
        bits = UNSIGNED[width(kind)]
        return lambda batch: batch.values[slot][batch.active].astype(bits).view(target)

    def _read_address(self, operand: str, kind: str) -> Reader:
        name, _, offset = operand.replace(" ", "").partition("+")
        add, numpy_type = int(offset or 0), NUMPY[kind]
        for table in (self.local_addresses, self.shared_fixed, self.parameters):
            if name in table:
                constant = numpy_type(table[name] + add)
                return lambda batch: constant
        if name in self.constants:
            self.used.add(name)
            return lambda batch: numpy_type(batch.launch.variables[name] + add)
        raise errors.Unsupported(f"operand {operand}")

    def write(self, operand: str, signed: bool = False) -> Writer:
        """A writer of a register. A narrower integer is extended as its NumPy type says, a wider one is cut."""
        if operand == "_":
            return lambda batch, value: None
        if operand not in self.number:
            raise errors.Unsupported(f"destination {operand}")
        own = self.registers[self.number[operand]]
        if own == "pred":
            slot = self.slot(operand, np.bool_)
        else:
            slot = self.raw(operand)
            views = {}
            for kind in {NUMPY[own], SIGNED.get(width(own)), *(NUMPY[f] for f in FLOATS if width(f) == width(own))}:
                if kind is not None:
                    views[np.dtype(kind)] = self.slot(operand, kind)
            return _register_writer(slot, views, np.dtype(register_type(own)))

        def put(batch: Batch, value: Any) -> None:
            batch.values[slot][batch.active] = value

        return put

    def address(self, operand: str) -> Reader:
        """The byte address of "[%rd1+16]" for each active thread, as int64."""
        text = operand[1:-1].replace(" ", "")
        match = re.fullmatch(r"(.*?)\+?(-?\d+)", text) if "+" in text else None
        base, offset = (match.group(1), int(match.group(2))) if match else (text, 0)
        if self.is_register(base):
            kind = "s64" if width(self.registers[self.number[base]]) == 8 else "u32"
            inner = self.read(base, kind)
            if kind == "s64":
                return lambda batch: inner(batch) + offset if offset else inner(batch)
            return lambda batch: inner(batch).astype(np.int64) + offset
        value = self.read(base, "s64")
        return lambda batch: np.full(len(batch.lanes), int(value(batch)) + offset, np.int64)

    def constant(self, operand: str) -> int | None:
        value = immediate(operand, "s64")
        return None if value is None else int(value)


def _register_writer(slot: int, views: dict[Any, int], bits: Any) -> Writer:
    def put(batch: Batch, value: Any) -> None:
        kind = value.dtype if isinstance(value, (np.ndarray, np.generic)) else None
        view = views.get(kind)
        if view is None:
            # another width: signed values extend their sign, the others zeros; floats must match
            view = views.get(np.dtype(f"i{bits.itemsize}"), slot) if kind is not None and kind.kind == "i" else slot
            if kind is not None and kind.kind == "f":
                raise TypeError(f"a {kind} result for a register of {bits.itemsize} bytes")
        batch.values[view][batch.active] = value

    return put


def _local_layout(module: Module) -> tuple[dict[str, int], int]:
    addresses, top = {}, 0
    for variable in module.variables.values():
        if variable.space == "local":
            top = -(-top // max(variable.align, 16)) * max(variable.align, 16)
            addresses[variable.name] = top
            top += variable.nbytes
    return addresses, top


def shared_layout(module: Module, dynamic: int) -> SharedLayout:
    """Static variables in order, each followed by a gap, then the dynamic one."""
    addresses, top, spans = {}, 0, []
    variables = [v for v in module.variables.values() if v.space == "shared"]
    for variable in variables:
        if variable.nbytes:
            top = -(-top // variable.align) * variable.align
            addresses[variable.name] = top
            spans.append((top, variable.nbytes))
            top += variable.nbytes + _SHARED_GAP
    open_ended = [v for v in variables if not v.nbytes]
    if open_ended:
        align = max(16, *(v.align for v in open_ended))
        top = -(-top // align) * align
        addresses |= {v.name: top for v in open_ended}
        spans.append((top, dynamic))
        top += dynamic
    valid = np.zeros(-(-top // 16) * 16, np.bool_)
    for start, nbytes in spans:
        valid[start : start + nbytes] = True
    return SharedLayout(addresses, len(valid), valid)


def _parameter_layout(function: Function) -> dict[str, int]:
    """Offsets in the parameter block."""
    offsets, top = {}, 0
    for parameter in function.parameters:
        top = -(-top // parameter.align) * parameter.align
        offsets[parameter.name] = top
        top += parameter.nbytes
    return offsets
