"""PTX types and NumPy types, and the float formats that NumPy lacks (bf16, tf32)."""

import re
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# PTX type -> the NumPy type of a register of that type. bf16, tf32 and packed pairs travel as their bits.
NUMPY: dict[str, Any] = {
    "pred": np.bool_,
    "b8": np.uint8, "u8": np.uint8, "s8": np.int8,
    "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "f16": np.float16, "bf16": np.uint16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32, "tf32": np.uint32,
    "f16x2": np.uint32, "bf16x2": np.uint32, "u16x2": np.uint32, "s16x2": np.uint32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64, "f32x2": np.uint64,
    "b128": np.complex128,  # moved only, never computed with; complex128 is NumPy's one type of 16 bytes everywhere
}  # fmt: skip

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
FLOATS = ("f16", "f32", "f64")
PACKED = {"f16x2": "f16", "bf16x2": "bf16"}
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def width(ptx_type: str) -> int:
    """Bytes of one value; a predicate has none in memory and counts as 1."""
    return np.dtype(NUMPY[ptx_type]).itemsize


def register_type(ptx_type: str) -> Any:
    """How a register of this type is stored: as raw bits, so that any instruction may view it."""
    return np.bool_ if ptx_type == "pred" else UNSIGNED[width(ptx_type)]


def is_signed(ptx_type: str) -> bool:
    return ptx_type[0] == "s"


def types_of(modifiers: tuple[str, ...]) -> list[str]:
    """The types among an opcode's modifiers, in order: ("rn", "f16", "f32") -> ["f16", "f32"]."""
    return [word for word in modifiers if word in NUMPY]


def bf16_to_f32(bits: Array) -> Array:
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array, mode: str = "rn") -> Array:
    """Round to nearest even ("rn") or towards zero ("rz"); every NaN becomes 0x7fff, as the hardware writes it."""
    values = np.asarray(values, np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    if mode == "rn":
        bits = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.where(np.isnan(values), np.uint16(0x7FFF), (bits >> np.uint32(16)).astype(np.uint16))


def f32_to_tf32(values: Array) -> Array:
    """cvt.rna.tf32.f32: round the low 13 bits to nearest, ties away from zero. Infinities and NaNs keep theirs."""
    bits = np.ascontiguousarray(np.asarray(values, np.float32)).view(np.uint32).reshape(np.shape(values))
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded, np.where(np.isnan(values), np.uint32(0x7FFFFFFF), bits))


def tf32_operand(bits: Array) -> Array:
    """What a tensor core reads of a 32-bit register: the low 13 bits do not exist."""
    return (np.ascontiguousarray(bits) & np.uint32(0xFFFFE000)).view(np.float32)


def immediate(text: str, ptx_type: str) -> Any | None:
    """The value of a constant operand as a NumPy scalar of the type, or None where the text is no constant."""
    numpy_type = NUMPY[ptx_type]
    kind = text[:2].lower()
    if kind == "0f" and re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        single = np.array(int(text[2:], 16), np.uint32)
        return single.view(np.float32)[()] if ptx_type == "f32" else _reinterpret(int(text[2:], 16), ptx_type)
    if kind == "0d" and re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        return np.array(int(text[2:], 16), np.uint64).view(np.float64)[()]
    if not re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?", text):
        return None
    digits = text.rstrip("U")
    octal = re.fullmatch(r"(-?)0([0-7]+)", digits)
    value = int(octal.group(1) + octal.group(2), 8) if octal else int(digits, 0)
    if ptx_type == "pred":
        return np.bool_(value)
    if ptx_type in FLOATS:
        return numpy_type(value)
    return _reinterpret(value, ptx_type)


def _reinterpret(value: int, ptx_type: str) -> Any:
    bytes_ = width(ptx_type)
    return np.array(value & ((1 << 8 * bytes_) - 1), UNSIGNED[bytes_]).view(NUMPY[ptx_type])[()]
