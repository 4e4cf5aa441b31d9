"""conv and its gradients against torch (oneDNN) in both layouts and onnxruntime."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from numbaprims.bench.cases import (
    OURS,
    Case,
    Contender,
    Workload,
    parse_shape,
    select,
)
from numbaprims.bench.stems import conv_suites, shared
from numbaprims.bench.stems.conv_operands import Operands, Ours, elements, layer_of
from numbaprims.bench.stems.conv_rivals import all_rivals
from numbaprims.bench.stems.conv_solvers import regret
from numbaprims.bench.stems.conv_suites import Layer
from numbaprims.dispatch.call import forget

DIMENSIONS = ("n", "c", "h", "w", "k", "r", "s")
VOLUME = ("n", "c", "d", "h", "w", "k", "z", "r", "s")
DIRECTIONS = ("forward", "data", "weight", "bias")
# The cost of a first call is the difference of two times: where a call takes longer than this, it drowns in noise.
_COLD_CALLS_UP_TO = 20e-3


def cases(options: Namespace) -> list[Case]:
    """The cases that the options of the command select; the batch is that of a layer, else of --batch."""
    found: list[Case] = []
    for direction in options.direction or DIRECTIONS[:1]:
        if direction not in DIRECTIONS:
            raise ValueError(f"direction: {direction!r} given, allowed are {', '.join(DIRECTIONS)}")
        for dtype in options.dtype:
            for name, layer in _layers(options):
                found.append(_case(name, layer, dtype, direction, options))
    return found


def _layers(options: Namespace) -> list[tuple[str, Layer]]:
    given: dict[str, Any] = {name: getattr(options, name) for name in VOLUME if getattr(options, name) is not None}
    if given:
        given.setdefault("n", 1)
        if {"d", "z"} & given.keys():
            given = {"d": 1, "z": 1} | given
        missing = [f"--{name}" for name in DIMENSIONS if name not in given]
        if missing:
            raise ValueError(f"sizes: {' '.join(missing)} missing, a layer needs --c --h --w --k --r --s")
        return [("given", _given(tuple(given.items()), options))]
    found = []
    batches = options.batch or ([1] if options.quick else [1, 16])
    wanted = options.shapes
    volumes = [word for word in wanted or [] if word[:1].isdecimal() and word.count("x") == len(VOLUME) - 1]
    if volumes:
        found = [("given", _given(parse_shape(word, VOLUME), options)) for word in volumes]
        wanted = [word for word in wanted if word not in volumes]
    for name, suite in select("conv", wanted, DIMENSIONS):
        if name == "given":
            found.append((name, _given(suite, options)))
        else:
            for option, plain in (("stride", "1"), ("padding", "0"), ("dilation", "1"), ("groups", "1")):
                if str(value := getattr(options, option)) != plain:
                    raise ValueError(f"{option}: {value!r} given, but the layers of the suite {name} have their own")
            found += [(name, layer) for layer in conv_suites.layers(suite, batches)]
    return found


def _given(sizes: tuple[tuple[str, int], ...], options: Namespace) -> Layer:
    fields: dict[str, Any] = dict(sizes)
    rank = 3 if "d" in fields else 2
    fields |= {
        name: conv_suites.steps(getattr(options, name), rank, name) for name in ("stride", "padding", "dilation")
    }
    layer = Layer(**fields, groups=options.groups)
    if layer.c % layer.groups or layer.k % layer.groups:
        raise ValueError(f"groups: {layer.groups} given, allowed are divisors of {layer.c} and of {layer.k} channels")
    if min(layer.stride + layer.dilation) < 1 or min(layer.output) < 1:
        filters = "x".join(map(str, layer.kernel))
        raise ValueError(f"shapes: a filter {filters} given that does not fit its padded image")
    return layer


def _case(suite: str, layer: Layer, dtype: str, direction: str, options: Namespace) -> Case:
    switches: list[tuple[str, Any]] = [
        (name, conv_suites.text(getattr(layer, name)))
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        if set(getattr(layer, name)) != {default}
    ]
    switches += [("groups", layer.groups)] if layer.groups > 1 else []
    switches += [("direction", direction)] if direction != "forward" else []
    switches += [("layout", "NHWC")] if options.layout == "NHWC" else []
    if direction == "forward":
        switches += [(name, value) for name in ("bias", "activation") if (value := getattr(options, name))]
    names = VOLUME if len(layer.stride) == 3 else DIMENSIONS
    return Case("conv", suite, tuple((name, getattr(layer, name)) for name in names), dtype, tuple(switches))


def memory(case: Case) -> float:
    """Bytes of the operands of a case; x is there in two layouts, results once for each rival."""
    x, w, y = elements(layer_of(case))
    return shared.memory(lambda case: 3 * x + 4 * w + 6 * y)(case)


def ours(case: Case, draw: shared.Draw) -> shared.Ours:
    """Our plain call."""
    p = Operands(case, draw)
    return shared.Ours(Ours(p).call(), {}, out=p.out)


def workload(case: Case, threads: int) -> Workload:
    """Our plan forward, our call for gradients, and every rival."""
    p = Operands(case, shared.drawn(case))
    calls = Ours(p)
    contenders = all_rivals(p, threads)
    if p.direction == "forward":
        contenders = {"numbaprims call": Contender(calls.call(), p.result), **contenders}
    if case.dtype in ("bf16", "f16", "int8"):
        # the same layer in our own float32, which the narrow types are compared with
        wide = replace(case, dtype="f32")
        own = Operands(wide, shared.drawn(wide))
        contenders["numbaprims f32"] = Contender(Ours(own).plan(), own.result, check=own.check())
    # 9 or 25 products for each element of a depthwise convolution: memory bounds it; in a cache, or with 25, arithmetic
    bound = "read" if p.direction == "bias" else "copy or fma" if p.layer.is_depthwise else "fma"
    sizes = {"x": p.x.storage.nbytes, "w": p.w.storage.nbytes, "y": p.y.storage.nbytes}
    return Workload(
        {OURS: Contender(calls.plan(), p.result), **contenders},
        p.check(),
        flops=float(p.y.storage.size if p.direction == "bias" else p.layer.flops),
        bytes=float(sum(sizes[name] for name in p.read) + p.out.storage.nbytes),
        bound=bound,
        solver=calls.solver,
        output=p.out.storage,
        more={} if p.direction == "bias" else {"cold": lambda: cold(calls), "regret": lambda: regret(calls)},
    )


def cold(ours: Ours) -> float | None:
    """Seconds that the first plain call of a problem takes longer than the next ones, kernels being loaded.

    None where a call is so long that the difference would be noise.
    """
    call = ours.call()
    call()
    steady = statistics.median(_seconds(call) for _ in range(5))
    if steady > _COLD_CALLS_UP_TO:
        return None
    firsts = []
    for _ in range(5):
        forget()
        firsts.append(_seconds(call))
    return max(statistics.median(firsts) - steady, 0.0)


def _seconds(call: Callable[[], Any]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin
