"""gemm against NumPy, torch (MKL) and oneDNN through torch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product as pairs
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench import rivals
from numbaprims.bench.cases import (
    DTYPES,
    Case,
    Contender,
    Workload,
    disagreement,
    parse_shape,
    select,
    sum_bound,
)
from numbaprims.bench.operands import Operand, on_host
from numbaprims.bench.stems import shared
from numbaprims.bench.stems.shared import Draw, Ours, fastest
from numbaprims.reference.activation import activation

DIMENSIONS = ("m", "n", "k")
_ONEDNN_ATTRIBUTES = {None: "none", "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "swish"}


def cases(options: Namespace) -> list[Case]:
    """The cases that the options of the command select."""
    epilogue = tuple((name, value) for name in ("bias", "activation") if (value := getattr(options, name)))
    found: list[Case] = []
    for dtype, batch in pairs(options.dtype, options.batch or [1]):
        extra = ((("batch", batch),) if batch > 1 else ()) + epilogue
        for name, suite in select("gemm", options.shapes, DIMENSIONS):
            by_storage = {"nn": [suite]} if name == "given" else {
                stored: [parse_shape(text, DIMENSIONS) for text in suite[stored]]
                for stored in ("nn", "tn", "nt") if stored in suite
            }  # fmt: skip
            for stored, shapes in by_storage.items():
                on = {"trans_a": stored == "tn" or options.trans_a, "trans_b": stored == "nt" or options.trans_b}
                transposed = tuple((switch, True) for switch in on if on[switch])
                found += [Case("gemm", name, sizes, dtype, (*transposed, *extra)) for sizes in shapes]
    return found


class _Problem:
    """Operands of a case; `a` and `b` as they are stored, `left` and `right` as they are multiplied."""

    def __init__(self, case: Case, draw: Draw):
        self.case, self.dtype = case, DTYPES[case.dtype]
        m, n, k = (case[name] for name in DIMENSIONS)
        lead = (case["batch"],) if case.get("batch") else ()
        self.trans_a, self.trans_b = case.get("trans_a", False), case.get("trans_b", False)
        self.activation: str | None = case.get("activation")
        self.a = draw((*lead, *((k, m) if self.trans_a else (m, k))))
        self.b = draw((*lead, *((n, k) if self.trans_b else (k, n))))
        self.out = Operand.empty((*lead, m, n), "i32" if self.dtype == "i8" else self.dtype)
        self.bias = draw((n,)) if case.get("bias") else None
        if self.bias is not None and self.dtype == "i8":
            self.bias = Operand.of(self.bias.values(), "i32")
        self.m, self.n, self.k = m, n, k

    def logical(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The operands as the product reads them: (..., M, K) and (..., K, N) views."""
        return (a.swapaxes(-1, -2) if self.trans_a else a), (b.swapaxes(-1, -2) if self.trans_b else b)

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of our call, without `out`."""
        words: dict[str, Any] = {"trans_a": self.trans_a, "trans_b": self.trans_b}
        if self.bias is not None:
            words["bias"] = self.bias.ours
        if self.activation:
            words["activation"] = self.activation
        return words

    def check(self, got: np.ndarray) -> str | None:
        """Compare rows and columns (all of them if they are few) with the float64 product."""
        left, right = self.logical(self.a.values(), self.b.values())
        bias = None if self.bias is None else self.bias.values().astype(np.float64)
        # 24 whole rows and 24 whole columns touch every tile row, tile column and edge of a blocked product.
        rows, columns = shared.spread(self.m, 24), shared.spread(self.n, 24)
        if got.dtype.kind == "f" and not np.isfinite(got).all():
            return f"{int((~np.isfinite(got)).sum())} of {got.size} elements are not finite"
        for take_rows, take_columns in ((rows, slice(None)), (slice(None), columns)):
            want = _product(left[..., take_rows, :], right[..., :, take_columns])
            largest = float(np.abs(want).max(initial=0.0))
            if bias is not None:
                want += bias[take_columns]
                largest = max(largest, float(np.abs(want).max()))
            if self.activation:
                want = activation(want, self.activation)
            bound = sum_bound(largest, self.k, self.dtype)
            problem = disagreement(got[..., take_rows, :][..., take_columns], want, bound)
            if problem:
                return problem
        return None


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Float64 product, K in pieces, so that a K of 500,000 needs no copy of the operands."""
    k = left.shape[-1]
    step = max(1, (1 << 23) // max(left.shape[-2], right.shape[-1]))
    total = np.zeros((*left.shape[:-1], right.shape[-1]))
    for low in range(0, k, step):
        high = min(low + step, k)
        total += left[..., low:high].astype(np.float64) @ right[..., low:high, :].astype(np.float64)
    return total


def _product_of(p: _Problem) -> Ours:
    call = partial(numbaprims.gemm, p.a.ours, p.b.ours, out=p.out.ours, **p.keywords())
    return Ours(call, {"a": p.a, "b": p.b}, out=p.out, checked=p.check, bound="fma")


def ours(case: Case, draw: Draw) -> Ours:
    """Our call."""
    return _product_of(_Problem(case, draw))


def workload(case: Case, threads: int) -> Workload:
    """Our call and every rival that has the type and the epilogue."""
    p = _Problem(case, shared.drawn(case))
    others = _numpy(p) | _torch(p) | _onednn(p) | _cupy(p) | _plan(p)
    if case.dtype in ("bf16", "f16", "int8"):
        # the same product in our own float32, which the narrow types are compared with
        wide = replace(case, dtype="f32")
        own = ours(wide, shared.drawn(wide))
        others["numbaprims f32"] = replace(own.contender(), check=own.checked)
    return _product_of(p).workload(case, others)


def _plan(p: _Problem) -> dict[str, Contender]:
    """Our product with B packed once, which is what a layer with fixed weights runs."""
    if p.b.storage.ndim != 2:
        return {}
    words = {name: value for name, value in p.keywords().items() if name != "trans_a"}
    plan = numbaprims.gemm.plan(p.b.ours, **words)
    a, out = p.logical(p.a.ours, p.b.ours)[0], p.out.ours
    return {"numbaprims plan": Contender(lambda: plan(a, out=out), p.out.values)}


def _numpy(p: _Problem) -> dict[str, Contender]:
    if not on_host() or p.dtype not in ("f32", "f64") or p.activation not in (None, "relu"):
        return {}
    left, right = p.logical(p.a.storage, p.b.storage)
    out, bias = p.out.storage, None if p.bias is None else p.bias.storage

    def product() -> None:
        np.matmul(left, right, out=out)
        if bias is not None:
            np.add(out, bias, out=out)
        if p.activation:
            np.maximum(out, 0, out=out)

    plain: Callable[[], Any] = lambda: np.matmul(left, right, out=out)  # noqa: E731
    return {"numpy": Contender(plain if bias is None and not p.activation else product, p.out.values)}


def _torch(p: _Problem) -> dict[str, Contender]:
    torch = rivals.load_rival("torch")
    if torch is None or p.activation not in (None, "relu"):
        return {}
    left, right = p.logical(p.a.torch, p.b.torch)
    out = p.out.torch
    call: Callable[[], Any]
    if p.dtype == "i8":
        if p.bias is not None or p.activation or out.ndim != 2:
            return {}
        call = lambda: torch._int_mm(left, right, out=out)  # noqa: E731
    elif p.bias is None:
        multiply = torch.mm if out.ndim == 2 else torch.bmm
        call = lambda: multiply(left, right, out=out)  # noqa: E731
    else:
        bias = p.bias.torch
        add = torch.addmm if out.ndim == 2 else torch.baddbmm
        call = lambda: add(bias, left, right, out=out)  # noqa: E731
    if p.activation:
        product = call
        call = lambda: (product(), out.relu_())  # noqa: E731
    return {"torch": Contender(call, p.out.values)}


def _cupy(p: _Problem) -> dict[str, Contender]:
    """cuBLAS through CuPy, for products without an epilogue."""
    cupy = None if on_host() else rivals.load_rival("cupy")
    if cupy is None or p.dtype not in ("f16", "f32", "f64") or p.bias is not None or p.activation:
        return {}
    left, right = p.logical(p.a.cupy, p.b.cupy)
    out = p.out.cupy
    return {"cupy": Contender(lambda: cupy.matmul(left, right, out=out), p.out.values)}


def _onednn(p: _Problem) -> dict[str, Contender]:
    """oneDNN's inner product, the kernel behind torch.compile's linear layers; it has no `out=`.

    Which storage of the weight is fastest depends on the shape, so all are tried: as given, the other way
    round, and (a rival of its own, since its packing is not timed) reordered into oneDNN's blocked layout.
    """
    torch = rivals.load_rival("torch")
    if torch is None or not on_host() or not torch.backends.mkldnn.is_available() or p.out.storage.ndim != 2:
        return {}
    if p.dtype not in ("f32", "bf16") or p.activation not in _ONEDNN_ATTRIBUTES:
        return {}
    linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if linear is None:
        return {}
    left, right = p.logical(p.a.torch, p.b.torch)
    weight = right.t()
    bias = None if p.bias is None else p.bias.torch
    attribute = _ONEDNN_ATTRIBUTES[p.activation]

    def contender(w: Any, form: str) -> Contender:
        return shared.returned(torch, partial(linear, left, w, bias, attribute, [], ""), form)

    forms = {
        "weight as given": contender(weight, "weight as given"),
        "weight (N, K)": contender(weight.contiguous(), "weight stored (N, K)"),
    }
    if p.trans_b:
        forms["weight (K, N)"] = contender(weight.t().contiguous().t(), "weight stored (K, N)")
        del forms["weight (N, K)"]  # it is as given
    found = {"onednn": fastest(forms)}
    reorder = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    if reorder is not None:
        found["onednn packed"] = contender(reorder(weight.contiguous(), p.m), "weight reordered beforehand")
    return found


memory = shared.memory(lambda c: c.get("batch", 1) * (c["m"] * c["k"] + c["k"] * c["n"] + c["m"] * c["n"]))
