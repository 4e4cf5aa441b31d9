"""What stems share: cases of kinds, our call of a case held to its definition, torch and onnxruntime at their best."""

from __future__ import annotations

import itertools
import math
import types
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import numbaprims
from numbaprims.bench import rivals
from numbaprims.bench.cases import (
    DTYPES,
    EPS,
    OURS,
    Case,
    Contender,
    Workload,
    aligned,
    aligned_empty,
    disagreement,
    generator,
    poison,
    select,
)
from numbaprims.bench.onnx_model import Node, Tensor, model_of
from numbaprims.bench.operands import Operand, on_host
from numbaprims.dispatch.problem import Problem
from numbaprims.ops.primitive import problems
from numbaprims.tuning.timing import Schedule, measure

# ---------------------------------------------------------------- cases

Draw = Callable[..., Operand]
Switches = tuple[tuple[str, Any], ...]
Found = dict[str, Contender]


def rows(
    options: Namespace, stem: str, forms: Sequence[tuple[str, ...]], kinds: Sequence[str]
) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """(suite, dtype, kind, row of its `layers`) that the options select; a shape that was given is a row too, of that
    of the `forms`, names of sizes, that has as many.

    Kinds are those of --kind, else of the row, of the suite, or all.  A row without its own n is run for each --batch.
    """
    unknown = [kind for kind in options.kind or () if kind not in kinds]
    if unknown:
        raise ValueError(f"kind: {unknown[0]!r} given, allowed are {', '.join(kinds)}")
    batches = options.batch or ([1] if options.quick else [1, 16])
    found = []
    for word in [None] if options.shapes is None else options.shapes:
        sizes = (form for form in forms if word is not None and word.count("x") == len(form) - 1)
        found += select(stem, None if word is None else [word], next(sizes, forms[0]))
    for dtype in options.dtype:
        for name, suite in found:
            given = name == "given"
            for row in [dict(suite)] if given else suite["layers"]:
                wanted = options.kind or row.get("kinds") or (kinds if given else suite.get("kinds", kinds))
                for n, kind in itertools.product([row["n"]] if "n" in row else batches, wanted):
                    yield name, dtype, kind, {**row, "n": n}


def switched(options: Namespace, names: str, row: Mapping[str, Any] = types.MappingProxyType({})) -> Switches:
    """The switches of these names that are on, by the options or by a row."""
    given = {name: getattr(options, name) or row.get(name) for name in names.split()}
    return tuple((name, value) for name, value in given.items() if value and value != "NCHW")


def cases(
    stem: str, forms: Sequence[tuple[str, ...]], kinds: Sequence[str],
    switches: str | Callable[[Namespace, str, Mapping[str, Any]], Switches | None] = "",
) -> Callable[[Namespace], list[Case]]:  # fmt: skip
    """The function `cases` of a stem: (options) -> those that they select.

    The sizes of a case are those of the form that its row has. Its `switches` are options by their names, in this
    order, or what (options, kind, row with its suite) gives, None for no case.
    """

    def chosen(options: Namespace) -> list[Case]:
        found = []
        for suite, dtype, kind, row in rows(options, stem, forms, kinds):
            form = max((form for form in forms if all(name in row for name in form)), key=len)
            if isinstance(switches, str):
                more: Switches | None = switched(options, switches, row)
            else:
                more = switches(options, kind, {**row, "suite": suite})
            if more is not None:
                sizes = tuple((name, row[name]) for name in form)
                found.append(Case(stem, suite, sizes, dtype, (("kind", kind), *more)))
        return found

    return chosen


def memory(elements: Callable[[Case], float]) -> Callable[[Case], float]:
    """The function `memory` of a stem: bytes of the operands of a case, of results and of what rivals make of them."""
    return lambda case: float(elements(case) * (8 if case.dtype == "f64" else 4))


def drawn(case: Case) -> Draw:
    """What draws the operands of a case: `draw(shape, low, high)`, whole numbers where a dtype of them is named."""
    rng = generator(case)

    def draw(shape: tuple[int, ...], low: float = -1.0, high: float = 1.0, dtype: str | None = None) -> Operand:
        if dtype is not None:
            return Operand(aligned(rng.integers(int(low), int(high), shape)), dtype)
        if case.dtype == "int8":
            return Operand.of(rng.integers(-128, 128, shape, np.int8), "i8")
        values = np.asarray(rng.random(shape, np.float32))
        return Operand.of(values * np.float32(high - low) + np.float32(low), DTYPES[case.dtype])

    return draw


def blank(case: Case) -> Draw:
    """The same for operands that are looked at only."""

    def draw(shape: tuple[int, ...], low: float = -1.0, high: float = 1.0, dtype: str | None = None) -> Operand:
        return Operand(aligned(np.zeros(shape, np.int64)), dtype) if dtype else Operand.empty(shape, DTYPES[case.dtype])

    return draw


def output(case: Case, shape: tuple[int, ...]) -> Operand:
    """What a call writes."""
    return Operand.empty(shape, DTYPES[case.dtype])


def spread(count: int, most: int = 16) -> np.ndarray:
    """Indices of up to so many of `count` parts, the first and the last among them: what is held to the definition."""
    return np.unique(np.linspace(0, count - 1, most).astype(int))


def exact(values: np.ndarray) -> np.ndarray:
    """In float64, where definitions are computed."""
    return values.astype(np.float64)


def channels_first(values: np.ndarray, last: bool) -> np.ndarray:
    """The array as (n, c, spatial...)."""
    return np.moveaxis(values, -1, 1) if last else values


@dataclass
class Ours:
    """Our call of a case.

    call         what is timed; it writes into `out`, or returns its result
    reads        its operands, by name
    definition   from their values what it gives in float64: the part of it that `part` takes of a result
    terms        how many terms a sum has
    checked      in the place of these three its own check of a result
    reset        puts the operands back, for a call that accumulates into `out`
    posed        a call of which the problem is posed first, where `call` launches something smaller before it
    last         the result has its channels last
    """

    call: Callable[[], Any]
    reads: dict[str, Operand]
    definition: Callable[[list[np.ndarray]], Any] = lambda values: None
    part: Callable[[np.ndarray], np.ndarray] = lambda values: values
    terms: int = 1
    out: Operand | None = None
    checked: Callable[[np.ndarray], str | None] | None = None
    reset: Callable[[], None] | None = None
    posed: Callable[[], Any] | None = None
    last: bool = False
    bound: str = "copy"

    def problem(self) -> Problem:
        """Of its largest launch."""

        def pose() -> None:
            (self.posed or self.call)()

        return problems(pose)["pose"]()

    def contender(self) -> Contender:
        """What is timed."""
        if self.out is not None:
            out = self.out
            return Contender(self.call, lambda: channels_first(out.values(), self.last), self.reset)

        return returned(np, self.call)

    def workload(self, case: Case, others: dict[str, Contender]) -> Workload:
        """Ours and the rivals; bytes are those that the problem has to move."""
        problem, device = self.problem(), "cpu" if on_host() else "cuda"
        return Workload(
            {OURS: self.contender(), **others},
            self.checked or self.check(DTYPES[case.dtype]),
            flops=problem.flops(),
            bytes=problem.bytes_moved(),
            bound=self.bound,
            solver=lambda: str(numbaprims.explain(problem, device=device).chosen.solver),
            output=None if self.out is None or self.reset else self.out.storage,
        )

    def check(self, dtype: str) -> Callable[[np.ndarray], str | None]:
        """What is wrong with a result: some ULP of the largest value are allowed, more for long sums."""
        eps = max(EPS.get(dtype, 0.0), 2.0**-24 if dtype != "f64" else 0.0)

        known: list[np.ndarray] = []  # the same for every contender

        def check(got: np.ndarray) -> str | None:
            if not np.isfinite(got).all():
                return f"{int((~np.isfinite(got)).sum())} of {got.size} elements are not finite"
            if not known:
                known.append(np.asarray(self.definition([each.values() for each in self.reads.values()])))
            largest = max(float(np.abs(known[0]).max()), 1e-30)
            return disagreement(self.part(got), known[0], (16 + math.sqrt(self.terms)) * eps * largest)

        return check


def workload(
    ours: Callable[[Case, Draw], Ours], *, torch: Callable[[Any, Case, Ours], Found] | None = None,
    numpy: Callable[[Case, Ours], Found] | None = None,
    onnxruntime: Callable[[Case, Ours, int], Found] | None = None,
) -> Callable[[Case, int], Workload]:  # fmt: skip
    """The function `workload` of a stem: our call, and the rivals that are there.

    Of NumPy those of its own types; of onnxruntime those of float32, and no gradients.
    """

    def made(case: Case, threads: int) -> Workload:
        p, found, module = ours(case, drawn(case)), Found(), torch_module()
        if torch is not None and module is not None:
            found |= torch(module, case, p)
        if numpy is not None and on_host() and case.dtype in ("f32", "f64"):
            found |= numpy(case, p)
        if onnxruntime is not None and on_host() and case.dtype == "f32" and not case.get("backward"):
            found |= onnxruntime(case, p, threads)
        return p.workload(case, found)

    return made


# ---------------------------------------------------------------- torch


def torch_module() -> Any:
    """torch; on a GPU with the fastest of cuDNN's algorithms, and float32 in full, as ours is."""
    torch = rivals.load_rival("torch")
    if torch is not None and not on_host():
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    return torch


def returned(torch: Any, function: Callable[[], Any], form: str = "") -> Contender:
    """What a function of torch returns, for those that have no `out=`; of several tensors the first.

    No operand requires a gradient, so that torch records nothing; to enter `inference_mode` in each call would cost
    more than it saves (a 1x1 convolution of 14 x 14: 12.5 us instead of 11.2).
    """
    latest: list[Any] = [None]

    def call() -> None:
        latest[0] = function()

    return Contender(call, lambda: array(torch, latest[0]), form=form)


def written(torch: Any, function: Callable[[], Any], out: Any) -> Contender:
    """What a function of torch writes into a tensor."""
    return Contender(function, lambda: array(torch, out))


def gradient(torch: Any, y: Any, x: Any, dy: Any) -> Contender:
    """What autograd runs behind y, by its recorded graph, for x or several of them."""
    return returned(torch, partial(torch.autograd.grad, y, x, dy, retain_graph=True))


def array(torch: Any, tensor: Any) -> np.ndarray:
    """A tensor, or the first of several, as an array; of NumPy's functions (`torch` is NumPy) an array is one."""
    tensor = tensor[0] if isinstance(tensor, tuple) else tensor
    if torch is np:
        return np.asarray(tensor.to_host() if hasattr(tensor, "to_host") else tensor)
    if tensor.is_mkldnn:
        tensor = tensor.to_dense()
    wide = tensor.dtype in (torch.bfloat16, torch.float16)
    return np.asarray((tensor.float() if wide else tensor).contiguous().cpu().numpy())


def both_layouts(torch: Any, *tensors: Any) -> dict[str, tuple[Any, ...]]:
    """The tensors with the channels first, and last: converted before anything is timed."""
    form = torch.channels_last if tensors[0].ndim == 4 else torch.channels_last_3d
    last = tuple(tensor.contiguous(memory_format=form) for tensor in tensors)
    return {"torch": tuple(tensor.contiguous() for tensor in tensors), "torch nhwc": last}


def nan_like(torch: Any, tensor: Any) -> Any:
    """An output in the layout of a tensor, filled with what no check lets through."""
    return torch.full_like(tensor, math.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min)


def fastest(forms: dict[str, Contender]) -> Contender:
    """The fastest of several forms of one rival."""
    if len(forms) == 1:
        return next(iter(forms.values()))
    quick = Schedule(block=8e-3, settle=2e-3, rounds=3, min_rounds=1, time_limit=1.0)
    times = measure({name: form.call for name, form in forms.items()}, quick)
    return forms[min(forms, key=lambda name: times[name].seconds)]


# ---------------------------------------------------------------- onnxruntime


def onnxruntime(
    operator: str | Sequence[Node], x: np.ndarray, shape: tuple[int, ...], threads: int, *,
    constants: Mapping[str, np.ndarray] | None = None, attributes: Mapping[str, Any] | None = None, dtype: Any = None,
) -> dict[str, Contender]:  # fmt: skip
    """A session whose input x and output y (of `shape`) are bound to arrays; {} where there is none.

    Its graph is the operator on x and the constants, or the nodes that are given.

    Constants belong to the model, so that the session packs them when it is made.  On several threads its workers
    either sleep between two runs or spin until one ends; the faster is taken, which depends on its length.
    """
    runtime = rivals.load_rival("onnxruntime")
    if runtime is None or not on_host():
        return {}
    y = aligned_empty(shape, dtype or x.dtype)
    poison(y)
    constants = constants or {}
    nodes = [Node(operator, ("x", *constants), "y", attributes or {})] if isinstance(operator, str) else operator
    tensors = [Tensor(name, array.shape, array.dtype.name) for name, array in (("x", x), ("y", y))]
    content = model_of(nodes, tensors[:1], tensors[1], constants)
    forms = {"workers sleep": {"session.intra_op.allow_spinning": "0"}}
    if threads > 1:
        forms["workers spin during a run"] = {
            "session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"
        }  # fmt: skip
    made = {name: _session(runtime, content, x, y, threads, entries, name) for name, entries in forms.items()}
    return {"onnxruntime": fastest(made)}


def _session(
    runtime: Any, content: bytes, x: np.ndarray, y: np.ndarray, threads: int, entries: dict[str, str], form: str
) -> Contender:
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype.type, y.shape, y.ctypes.data)
    kept = (x, y)  # a binding holds addresses
    return Contender(lambda: session.run_with_iobinding(binding), lambda: kept[1], form=form)
