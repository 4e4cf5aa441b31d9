"""What the site takes from the code and the stored results when it is built, so that it cannot be stale.

``{functions} ops.gemm``  every public function that a module defines, with its docstring
``{solvers} conv``        the registered solvers of a primitive, for the CPU and for GPUs
``{support} conv``        for which types and directions those are more than the definition
``{roofline} gemm``       the stored results of a primitive under the machine's roof
``{miopen} f32``          what MIOpen fuses of a type, and how many calls the same plan takes here
``{fusions} conv``        the nodes of the metadata graph that make one call
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import numbaprims
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.dtypes import LONG_NAMES
from numbaprims.fusion import metadata, miopen
from numbaprims.ops import examples

ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("f64", "f32", "f16", "bf16", "i8")


def functions_of(home: str) -> list[str]:
    """The public names that `home` defines, in the order of the package's own list."""
    return [name for name, module in numbaprims._LAZY.items() if module == home]


def devices() -> dict[str, Any]:
    """Devices whose kernels can be imported here, and a target of each."""
    found = {"CPU": ("cpu", registry.target("cpu"))}
    try:
        from numbaprims.gpu.target import H200

        registry.solvers("gemm", "cuda")
        found["GPU"] = ("cuda", H200)
    except ImportError:
        pass  # without numba-cuda the site has the CPU's half
    return found


def calls(stem: str, dtype: str) -> dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """One call of each direction of a primitive: what its support table poses."""

    def a(*shape: int) -> Any:
        return examples.array(shape, dtype)

    if stem == "gemm":
        return {"gemm": ("gemm", (a(64, 64), a(64, 64)), {})}
    if stem == "gemv":
        return {"gemv": ("gemv", (a(64, 64), a(64)), {})}
    if stem == "ger":
        return {"ger": ("ger", (a(64), a(64)), {})}
    if stem == "activation":
        return {"forward": ("gelu", (a(4096),), {}), "backward": ("gelu_backward", (a(4096),), {"x": a(4096)})}
    x, w, y = a(2, 32, 14, 14), a(32, 32, 3, 3), a(2, 32, 14, 14)
    forward = "conv_integer" if dtype == "i8" else "conv"
    return {
        "forward": (forward, (x, w), {"padding": 1}),
        "data": ("conv_backward_data", (y, w, x.shape), {"padding": 1}),
        "weight": ("conv_backward_weight", (y, x, w.shape), {"padding": 1}),
        "bias": ("conv_backward_bias", (y,), {}),
    }


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def solver_table(stem: str) -> list[str]:
    """Every registered solver, where it stands, and its class's first line."""
    rows: dict[str, dict[str, str]] = {}
    found = devices()
    for label, (device, _) in found.items():
        for solver in registry.solvers(stem, device):
            source, line = solver.source()
            row = rows.setdefault(solver.name, {})
            row[label] = f"`{Path(source).relative_to(ROOT / 'numbaprims')}:{line}`"
            row.setdefault("what", (inspect.getdoc(type(solver)) or "").split("\n\n")[0].replace("\n", " "))
    return table(
        ["solver", "what it does", *found],
        [
            [f"`{name}`", row["what"].replace("|", "\\|"), *(row.get(d, "") for d in found)]
            for name, row in rows.items()
        ],
    )


def support_table(stem: str) -> list[str]:
    """How many solvers beside `naive` take a typical call of each type; a dash where the call is refused."""
    found = devices()
    directions = list(calls(stem, "f32"))
    rows = []
    for dtype in DTYPES:
        for label, (device, target) in found.items():
            cells = []
            for direction in directions:
                name, args, words = calls(stem, dtype)[direction]
                try:
                    problem = problem_of(name, *args, **words)
                except TypeError:
                    cells.append("-")
                    continue
                able = [s.name for s in registry.solvers(stem, device) if s.why_not(problem, target) is None]
                quick = [f"`{name}`" for name in able if name != "naive"]
                cells.append(", ".join(quick) or "`naive`")
            rows.append([LONG_NAMES[dtype], label, *cells])
    return table(["type", "on", *directions], rows)


def function_pages(home: str) -> list[str]:
    """The docstrings of a module's public functions."""
    shown = ["```{eval-rst}", ".. currentmodule:: numbaprims", ""]
    for name in functions_of(home):
        shown += [f".. autofunction:: {name}", ""]
    return [*shown, "```"]


def roofline(stem: str) -> list[str]:
    """One figure for each machine whose results are stored, drawn beside the site."""
    from numbaprims.bench import plot, results

    shown = []
    for path in sorted((ROOT / "benchmarks" / "results").glob(f"*/{stem}.json")):
        drawn = ROOT / "docs" / "_build" / "figures" / f"{path.parent.name}-{stem}.svg"
        drawn.parent.mkdir(parents=True, exist_ok=True)
        plot.draw(results.read(path), str(drawn))
        shown += [f"```{{image}} /_build/figures/{drawn.name}", f":alt: {drawn.stem}", "```", ""]
    return shown


def calls_of(row: miopen.Row, dtype: str) -> str:
    """How many native calls a plan of a row of MIOpen's tables takes here, by the mode of its batch norm."""
    found = {}
    for mode in row.modes or ("",):
        plan = numbaprims.FusionPlan((1, 1, 32, 32), dtype)
        if "C" in row.combination:
            plan.conv(
                (1, 1, row.filters[0], row.filters[0]), stride=row.strides[0], padding=max(row.paddings, default=0)
            )
        if "B" in row.combination:
            plan.bias()
        if mode:
            plan.batch_norm(mode=mode)
        plan.activation(row.activations[-1])
        plan.compile(strict=True)
        found[mode] = plan.launches
    return ", ".join(f"{mode} {calls}".strip() for mode, calls in found.items())


def miopen_table(dtype: str) -> list[str]:
    """A table of MIOpen's paper, and what becomes of its rows here."""
    return table(
        [*miopen.HEADINGS, "calls here"], [[*row.cells(), calls_of(row, dtype)] for row in miopen.TABLES[dtype]]
    )


def fusion_table(family: str) -> list[str]:
    """The nodes of the metadata graph that make one call."""
    return table(
        ["node", "takes", "stands behind", "asks for", "what becomes of it"],
        [
            [f"`{node.name}`", node.kind, ", ".join(f"`{name}`" for name in node.after),
             "; ".join(ask.words for ask in node.asks), node.does]
            for node in metadata.NODES if node.family == family
        ],
    )  # fmt: skip


def directive(lines: Callable[[str], list[str]]) -> type[SphinxDirective]:
    """A directive whose one argument goes to `lines`, which gives the Markdown in its place."""

    class FromSource(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            box = nodes.container()
            self.state.nested_parse(StringList(lines(self.arguments[0]), "from_source"), self.content_offset, box)
            return list(box.children)

    return FromSource


def setup(app: Any) -> dict[str, Any]:
    for name, lines in {
        "solvers": solver_table, "support": support_table, "functions": function_pages, "roofline": roofline,
        "miopen": miopen_table, "fusions": fusion_table,
    }.items():  # fmt: skip
        app.add_directive(name, directive(lines))
    return {"version": numbaprims.__version__, "parallel_read_safe": True}
