"""Rotary position embedding against what models write in torch, and ONNX's operator."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import Case, Contender
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.reference import rope as reference

KINDS = ("halves", "interleaved")
SIZES = ("n", "h", "l", "e")  # batches, heads, rows, elements


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    n, h, rows, e = (case[name] for name in SIZES)
    backward, pairs = bool(case.get("backward")), case["kind"] == "interleaved"
    angles = reference.angles(rows, e - e % 2, 10000.0)
    x = draw((n, h, rows, e))
    tables = {name: Operand.of(function(angles), x.dtype) for name, function in (("cos", np.cos), ("sin", np.sin))}
    out, take = shared.output(case, (n, h, rows, e)), shared.spread(h, 2)

    def definition(values: list[np.ndarray]) -> Any:
        x, cos, sin = (shared.exact(each) for each in values)
        return reference.rotate(x[:, take], cos, sin, None, pairs, backward)

    function = numbaprims.rope_backward if backward else numbaprims.rope
    reads = {"x": x, **tables}
    call = partial(function, *(each.ours for each in reads.values()), interleaved=pairs, out=out.ours)
    return Ours(call, reads, definition, lambda values: values[:, take], 4, out)


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    """`x * cos + rotate_half(x) * sin` of halves, a product of complex numbers of pairs; a gradient is the same with
    another sign."""
    x, cos, sin = (each.torch for each in p.reads.values())
    sin, half = -sin if case.get("backward") else sin, case["e"] // 2
    if case["kind"] == "interleaved":
        if case.dtype not in ("f32", "f64"):
            return {}
        turn = torch.complex(cos, sin)

        def of_pairs() -> Any:
            with torch.inference_mode():
                pairs = torch.view_as_complex(x.view(*x.shape[:-1], half, 2))
                return torch.view_as_real(pairs * turn).flatten(-2)

        return {"torch complex": shared.returned(torch, of_pairs)}
    cos, sin = (torch.cat((each, each), -1) for each in (cos, sin))

    def of_halves() -> Any:
        with torch.inference_mode():
            return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    return {"torch": shared.returned(torch, of_halves)}


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    x, *tables = (each.storage for each in p.reads.values())
    given = {
        name: np.ascontiguousarray(np.broadcast_to(table, (case["n"], *table.shape)))
        for name, table in zip(("cos", "sin"), tables, strict=True)
    }
    node = Node("RotaryEmbedding", ("x", "cos", "sin"), "y", {"interleaved": int(case["kind"] == "interleaved")})
    return shared.onnxruntime([node], x, x.shape, threads, constants=given)


cases = shared.cases("rope", [SIZES], KINDS, "backward")
memory = shared.memory(lambda c: 12 * c["n"] * c["h"] * c["l"] * c["e"])
workload = shared.workload(ours, torch=_torch, onnxruntime=_onnxruntime)
