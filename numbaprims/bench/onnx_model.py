"""ONNX models of a few nodes as bytes: the few fields of the protocol buffer that onnxruntime needs to load one.

Field numbers are those of onnx.proto: a model holds its graph, a graph its nodes, constants (initializers), inputs and
outputs.  Written by hand so that the benchmark needs onnxruntime only, and not the onnx package too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

IR_VERSION, OPSET = 8, 17
#: Operators that came later.
_SINCE = {"Attention": 23, "RotaryEmbedding": 23}
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10, "float64": 11}
#: The domain of onnxruntime's own operators.
MICROSOFT = "com.microsoft"
_FLOAT, _INT, _INTS, _STRING = 1, 2, 7, 3


class Tensor(NamedTuple):
    """Name, shape and NumPy type of an input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Node(NamedTuple):
    """An operator, the names of what it reads and writes (several with spaces between), its attributes."""

    operator: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, int | float | Sequence[int] | str]
    domain: str = ""
    """"" is ONNX's own."""


def model(
    operator: str,
    inputs: Sequence[Tensor],
    output: Tensor,
    constants: Mapping[str, np.ndarray],
    attributes: Mapping[str, int | float | Sequence[int] | str],
) -> bytes:
    """A model whose graph is one node: the operator on the inputs, then on the constants, in this order.

    KeyError: a type that is not in the table above.
    """
    names = [*(tensor.name for tensor in inputs), *constants]
    return model_of([Node(operator, names, output.name, attributes)], inputs, output, constants)


def model_of(
    nodes: Sequence[Node], inputs: Sequence[Tensor], output: Tensor, constants: Mapping[str, np.ndarray]
) -> bytes:
    """A model whose graph is these nodes, each behind those whose results it reads.

    KeyError: a type that is not in the table above.
    """
    graph = b"".join(
        [*(_bytes(1, _node(node)) for node in nodes), _text(2, "graph")]
        + [_bytes(5, _constant(name, values)) for name, values in constants.items()]
        + [_bytes(11, _value(tensor)) for tensor in inputs]
        + [_bytes(12, _value(output))]
    )
    opset = _text(1, "") + _integer(2, max(_SINCE.get(node.operator, OPSET) for node in nodes))
    domains = sorted({node.domain for node in nodes} - {""})
    others = b"".join(_bytes(8, _text(1, name) + _integer(2, 1)) for name in domains)
    return _integer(1, IR_VERSION) + _bytes(7, graph) + _bytes(8, opset) + others


def _node(node: Node) -> bytes:
    return b"".join(
        [
            *(_text(1, name) for name in node.inputs),
            *(_text(2, name) for name in node.output.split()),
            _text(4, node.operator),
        ]
        + [_bytes(5, _attribute(name, value)) for name, value in node.attributes.items()]
        + ([_text(7, node.domain)] if node.domain else [])
    )


def _attribute(name: str, value: int | float | Sequence[int] | str) -> bytes:
    head = _text(1, name)
    if isinstance(value, int):
        return head + _integer(3, value) + _integer(20, _INT)
    if isinstance(value, float):
        return head + _varint(2 << 3 | 5) + struct.pack("<f", value) + _integer(20, _FLOAT)
    if isinstance(value, str):
        return head + _text(4, value) + _integer(20, _STRING)
    return head + b"".join(_integer(8, item) for item in value) + _integer(20, _INTS)


def _constant(name: str, values: np.ndarray) -> bytes:
    sizes = b"".join(_integer(1, size) for size in values.shape)
    raw = np.ascontiguousarray(values).tobytes()
    return sizes + _integer(2, _TYPES[values.dtype.name]) + _text(8, name) + _bytes(9, raw)


def _value(tensor: Tensor) -> bytes:
    shape = b"".join(_bytes(1, _integer(1, size)) for size in tensor.shape)
    tensor_type = _integer(1, _TYPES[tensor.dtype]) + _bytes(2, shape)
    return _text(1, tensor.name) + _bytes(2, _bytes(1, tensor_type))


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, content: str) -> bytes:
    return _bytes(field, content.encode())


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit of a byte says that another follows."""
    out = bytearray()
    value &= (1 << 64) - 1  # negative numbers are 64-bit two's complement
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
