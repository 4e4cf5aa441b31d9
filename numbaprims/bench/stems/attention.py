"""Attention against torch's scaled_dot_product_attention and ONNX's operator: inference, and training."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench.cases import DTYPES, Case, Contender
from numbaprims.bench.onnx_model import Node
from numbaprims.bench.operands import Operand
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours
from numbaprims.ops._attention_problem import default_scale
from numbaprims.reference import attention as reference

#: Without a mask, by position; with keys of padding left out (-inf), as batches of texts have them; with -100 between
#: the two parts of every other window, as Swin shifts them.
KINDS = ("full", "causal", "padded", "windows")
SIZES = ("n", "h", "g", "l", "s", "e")  # batches, heads of q, of k and v, queries, keys, features


def _switches(options: Namespace, kind: str, row: Mapping[str, Any]) -> shared.Switches | None:
    # nobody trains by one query
    alone = row["suite"] in ("decode", "padded") and row["l"] == 1
    return None if options.backward and alone else shared.switched(options, "backward")


def _mask(case: Case) -> Operand | None:
    """What is added to the scores of a kind that has a mask, for (batch, heads, queries, keys)."""
    n, rows, keys = (case[name] for name in "nls")
    if case["kind"] == "padded":
        lengths = keys - np.arange(n) * keys // (2 * n)
        apart, low = np.arange(keys) >= lengths.reshape(n, 1, 1, 1), -np.inf
    elif case["kind"] == "windows":
        parts = [np.arange(size) >= size // 2 for size in (rows, keys)]
        apart, low = (np.arange(n) % 2 == 1).reshape(n, 1, 1, 1) & (parts[0][:, None] != parts[1]), -100.0
    else:
        return None
    return Operand.of(np.where(apart, np.float32(low), np.float32(0)), DTYPES[case.dtype])


def _four(reads: Iterable[Any]) -> tuple[Any, Any, Any, Any]:
    """q, k, v, and the mask or None."""
    q, k, v, mask, *_ = (*reads, None)
    return q, k, v, mask


def ours(case: Case, draw: Draw) -> Ours:
    """Our call; of training the gradient of v is what is looked at."""
    n, h, g, rows, keys, e = (case[name] for name in SIZES)
    causal = case["kind"] == "causal"
    reads = {"q": draw((n, h, rows, e)), "k": draw((n, g, keys, e)), "v": draw((n, g, keys, e))}
    if (added := _mask(case)) is not None:
        reads["mask"] = added
    q, k, v, mask = _four(each.ours for each in reads.values())
    take = shared.spread(g, 2)

    def part(values: np.ndarray) -> np.ndarray:
        return values[:, take] if case.get("backward") else values[:, take * (h // g)]

    def definition(values: list[np.ndarray]) -> Any:
        q, k, v, mask = _four(shared.exact(each) for each in values)
        k, v = k[:, take], v[:, take]
        if not case.get("backward"):
            return reference.forward(q[:, take * (h // g)], k, v, mask, causal, default_scale(e))[0]
        q = q.reshape(n, g, h // g, rows, e)[:, take].reshape(n, -1, rows, e)
        found = reference.forward(q, k, v, mask, causal, default_scale(e))
        return reference.backward(np.ones_like(found[0]), q, k, v, *found, mask, causal, default_scale(e))[2]

    terms = e + keys
    if not case.get("backward"):
        out = shared.output(case, (n, h, rows, e))
        return Ours(
            partial(numbaprims.attention, q, k, v, mask=mask, causal=causal, out=out.ours), reads, definition, part,
            terms, out, bound="copy or fma",
        )  # fmt: skip
    backward: Any = numbaprims.attention_backward
    train = partial(numbaprims.attention_train, q, k, v, mask=mask, causal=causal)
    dout = draw((n, h, rows, e), 1.0, 1.0).ours

    def both() -> Any:
        out, lse = train()
        return backward(dout, q, k, v, out, lse, mask=mask, causal=causal)[2]

    def posed() -> Any:
        lse = Operand.empty((n, h, rows), "f64" if case.dtype == "f64" else "f32").ours
        return backward(dout, q, k, v, dout, lse, mask=mask, causal=causal)

    return Ours(both, reads, definition, part, terms + rows, posed=posed, bound="copy or fma")


def _torch(torch: Any, case: Case, p: Ours) -> dict[str, Contender]:
    q, k, v, mask = _four(each.torch for each in p.reads.values())
    attend = torch.nn.functional.scaled_dot_product_attention
    words = {"is_causal": case["kind"] == "causal", "enable_gqa": case["h"] != case["g"], "attn_mask": mask}
    if not case.get("backward"):

        def inference() -> Any:
            with torch.inference_mode():
                return attend(q, k, v, **words)

        return {"torch": shared.returned(torch, inference)}
    q, k, v = (each.clone().requires_grad_() for each in (q, k, v))
    dout = torch.ones_like(q)

    def training() -> Any:
        return torch.autograd.grad(attend(q, k, v, **words), (q, k, v), dout)[2]

    return {"torch": shared.returned(torch, training)}


def _onnxruntime(case: Case, p: Ours, threads: int) -> dict[str, Contender]:
    q, k, v, mask = _four(each.storage for each in p.reads.values())
    constants = {"k": k, "v": v}
    if mask is not None:  # it takes none that several queries share
        constants["mask"] = np.ascontiguousarray(np.broadcast_to(mask, (case["n"], 1, case["l"], case["s"])))
    node = Node("Attention", ("x", *constants), "y", {"is_causal": int(case["kind"] == "causal")})
    return shared.onnxruntime([node], q, q.shape, threads, constants=constants)


cases = shared.cases("attention", [SIZES], KINDS, _switches)
memory = shared.memory(
    lambda c: 8 * c["n"] * c["e"] * (c["h"] * (c["l"] + c["s"]) + c["g"] * c["s"])  # torch copies grouped keys
)
workload = shared.workload(ours, torch=_torch, onnxruntime=_onnxruntime)
