"""The rules of the source tree, as tests: who may import whom, and what stands where."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import numbaprims
from numbaprims.stems import ENGINES, STEMS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "numbaprims"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
PYTHON = sorted(
    path for folder in ("numbaprims", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")
)

KERNELS_NEED = {
    "dispatch.solver", "dispatch.problem", "arrays", "settings", "kernel_cache", "kernel_passes", "polynomials",
    "cook_toom", "fourier", "formulas", "workspace", "shapes", "sparse", "ops.activation_kinds", "device_arrays",
    "device_views",
    # plain data: what a solver that poses an inner product needs, the names of a launch's arrays
    "ops._gemm_problem", "ops.epilogue", "ops._pooling_problem", "ops._reduction_problem", "ops._lrn_problem",
    "ops._attention_problem", "ops._ctc_problem", "ops._random_problem", "ops._rnn_problem", "ops._stack_problem",
    "ops._stack_gradient", "ops._resize_problem", "ops._rope_problem", "ops._scan_problem", "ops._topk_problem",
    "philox", "stacks", "ops._gather_problem", "ops._gather_index_problem",
}  # fmt: skip

# tables of plain data, and locks and signals, which import nothing of ours: everybody may
TABLES = {"dtypes", "stems", "forks", "signals"}
# part of the package -> the parts it may import (its own is always allowed; "" is the package itself)
MAY_IMPORT = {
    "": {"dispatch.explain", "dispatch.fast_path", "ops", "settings"},
    "dtypes": set(),
    "stems": set(),
    "forks": set(),
    "signals": set(),
    "settings": set(),
    "shapes": set(),
    "libraries": set(),
    "arrays": {"libraries", "settings", "shapes", "device_arrays"},  # late, once an array of a GPU was seen
    "device_arrays": {"libraries", "device_views", "settings", "dlpack"},  # and gpu.memory, late and by path
    "device_views": set(),
    "dlpack": set(),
    "workspace": {"settings"},
    "polynomials": set(),
    "formulas": {"polynomials", "ops.activation_kinds", "philox", "stacks"},
    "stacks": set(),
    "recurrent": {"arrays"},
    "philox": set(),
    "cook_toom": set(),
    "fourier": {"cook_toom"},
    "kernel_cache": {"settings", "kernel_files", "source_digest"},
    "kernel_files": {"settings"},
    "kernel_passes": set(),
    "source_digest": set(),
    "reference": {"shapes", "arrays", "ops.activation_kinds", "stacks", "recurrent", "philox"},
    "datasets": set(),
    "tuning": {"settings", "kernel_cache"},
    "cpu": KERNELS_NEED,
    "gpu": KERNELS_NEED,
    # explain looks names up in the package's own table of public names, hence ""
    "dispatch": {"tuning", "settings", "arrays", "device_arrays", "shapes", "workspace", "reference", ""},
    "ops": {"dispatch", "settings", "arrays", "shapes", "reference", "formulas", "stacks", "recurrent", "philox"},
    "fusion": {
        "ops",
        "stacks",
        "settings",
        "arrays",
        "shapes",
        "reference",
        "dispatch.explain",
        "dispatch.registry",
        "dispatch.launchers",
        "dispatch.known",
        "dispatch.joining",
    },  # fmt: skip
    "nn": {"ops", "settings", "arrays", "shapes", "datasets", "gpu.memory", ""},
    "frontends": {"ops", "fusion", "settings", "arrays", "shapes", "recurrent", "philox", ""},
    # the public functions by name, hence ""; what `forget` clears
    "jitted": {"ops", "recurrent", "cpu", "settings", "arrays", "shapes", "dispatch.call", ""},
    "cli": {
        "settings",
        "dispatch.ship",
        "dispatch.registry",
        "dispatch.warm",
        "kernel_cache",
        "cpu",
        "gpu.driver",
        "datasets",
        "nn",
        "bench",
        "tuning",
        "",
    },
    "bench": {
        "arrays",
        "cli",
        "recurrent",
        "cpu.rates",
        "cpu.roofline",
        "cpu.target",
        "cpu.threads",
        "gpu.driver",
        "gpu.memory",
        "dispatch",
        "ops",
        "settings",
        "kernel_cache",
        "tuning",
        "reference",
        "stacks",
        "fusion",
        "",
    },
    "__main__": {"cli"},
}


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(), str(path))))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) for everything that `path` imports, the late imports inside functions too."""
    package = path.relative_to(ROOT).parent.parts
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                target = ROOT.joinpath(*module.split("."), alias.name)
                is_module = target.with_suffix(".py").exists() or target.is_dir()
                yield node.lineno, f"{module}.{alias.name}" if is_module else module


def part_of(module: str) -> str:
    """The top part that a dotted name inside numbaprims belongs to: numbaprims.cpu.gemm -> cpu."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def name_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_imports_go_one_way():
    wrong = []
    for path in MODULES:
        part = part_of(name_of(path))
        assert part in MAY_IMPORT, f"{path.relative_to(ROOT)}: say in MAY_IMPORT what {part!r} may import"
        for line, module in imports(path):
            if module.split(".")[0] != "numbaprims" or part_of(module) == part:
                continue
            inside = module.partition(".")[2]
            if inside in TABLES:
                continue
            if not any(inside == ok or (ok and inside.startswith(ok + ".")) for ok in MAY_IMPORT[part]):
                wrong.append(f"{where(path, line)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_modules_import_in_no_circle():
    """Late imports count as well: they hide a circle, but whoever reads one module still needs the other."""
    names = {name_of(path): path for path in MODULES}
    needs = {}
    for name, path in names.items():
        blocks = [node for node in nodes(path) if isinstance(node, ast.If)]
        types = {
            line
            for node in blocks
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for line in range(node.lineno, node.body[-1].end_lineno + 1)
        }
        needs[name] = {
            module for line, module in imports(path) if module in names and module != name and line not in types
        }
    graphlib.TopologicalSorter(needs).prepare()  # CycleError names the modules


def test_only_simd_imports_llvmlite():
    # kernel_cache and target ask llvmlite for its version and for the host's CPU; they emit nothing.
    allowed = {"numbaprims.kernel_cache", "numbaprims.cpu.target"}
    wrong = [
        where(path, line)
        for path in MODULES
        for line, module in imports(path)
        if module.split(".")[0] == "llvmlite"
        and not name_of(path).startswith(("numbaprims.cpu.simd", "numbaprims.gpu.device"))
        and not (name_of(path) in allowed and module != "llvmlite.ir")
    ]
    assert not wrong, "\n".join(wrong)


def test_only_jit_compiles():
    compilers = {"njit", "jit", "cfunc", "vectorize", "guvectorize", "stencil"}
    wrong = []
    for path in MODULES:
        if name_of(path) in ("numbaprims.cpu.jit", "numbaprims.gpu.jit"):
            continue
        for node in nodes(path):
            used = (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("numba", "nb", "cuda")
                and node.attr in compilers
            )
            imported = (
                isinstance(node, ast.ImportFrom)
                and node.module == "numba"
                and compilers & {alias.name for alias in node.names}
            )
            if used or imported:
                wrong.append(where(path, node.lineno))
    assert not wrong, "\n".join(wrong)


def test_only_gpu_jit_and_its_compiler_import_numba_cuda():
    wrong = [
        where(path, line)
        for path in MODULES
        for line, module in imports(path)
        if module.startswith("numba.cuda") and name_of(path) not in ("numbaprims.gpu.jit", "numbaprims.gpu.compiler")
    ]
    assert not wrong, "\n".join(wrong)


def test_only_gpu_device_holds_inline_ptx():
    wrong = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if "InlineAsm" in path.read_text() and not name_of(path).startswith("numbaprims.gpu.device")
    ]
    assert [name for name in wrong if not name.startswith("numbaprims/cpu/simd")] == []


# Variables of others, read where they matter; NUMBAPRIMS_* are read in settings.py alone.
FOREIGN_ENVIRONMENT = {
    "numbaprims.settings": "every NUMBAPRIMS_* variable",
    "numbaprims.cpu.threads": "OMP_NUM_THREADS, NUMBA_NUM_THREADS",
    "numbaprims.cpu.target": "NUMBA_CPU_NAME, NUMBA_CPU_FEATURES",
    "numbaprims.cli.info": "the caps that slow rivals, to warn of them",
}


def reads_environment(path: Path) -> list[int]:
    return [
        node.lineno
        for node in nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and "environ" in str(ast.dump(node)))
    ]


def test_environment_is_read_in_settings_only():
    wrong = [
        where(path, line)
        for path in MODULES
        for line in reads_environment(path)
        # numbaprims.bench removes rivals' caps from the environment before it imports them
        if name_of(path) not in FOREIGN_ENVIRONMENT and part_of(name_of(path)) != "bench"
    ]
    assert not wrong, "\n".join(wrong)
    ours = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        if name_of(path) != "numbaprims.settings" and reads_environment(path)
        for name in re.findall(r"""["'](NUMBAPRIMS_\w+)["']""", path.read_text())
    ]
    assert not ours, "\n".join(ours)


@pytest.mark.parametrize("stem", STEMS)
def test_stem_stands_everywhere_under_one_name(stem: str):
    def module(folder: Path, name: str) -> bool:
        return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()

    assert module(PACKAGE / "ops", stem)
    assert module(PACKAGE / "reference", stem)
    kernels = ENGINES.get(stem, stem)
    assert module(PACKAGE / "cpu", kernels)
    assert module(PACKAGE / "gpu", kernels)
    assert (ROOT / "tests" / "gpu" / f"test_{kernels}.py").is_file()
    assert list((ROOT / "tests").rglob(f"test_{stem}*.py"))
    assert (ROOT / "benchmarks" / f"bench_{stem}.py").is_file()
    page = (ROOT / "docs" / "primitives" / f"{stem}.md").read_text()
    assert re.search(r"^## On the GPU$(?s:.)*\| kernel \| registers ", page, re.M)


def test_no_file_past_500_lines():
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in PYTHON}
    assert {name: lines for name, lines in long.items() if lines > 500} == {}


# Who reads and writes words by number: what runs programs and known calls, and the walk of a stack, whose words are its
# own; a line that two threads of the roofline share.
BY_NUMBER = {
    "interpreter",
    "drivers",
    "fast_call",
    "known",
    "known_devices",
    "known_tensors",
    "call_entry",
    "roofline",
    "stack.walk",
    "stack.tiles",
}


def is_number(node: ast.AST) -> bool:
    """Whether an expression is a number that is written out, a constant of the module, or sums of them."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id.isupper())


def calls_of(path: Path, name: str) -> Iterator[ast.Call]:
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def test_blocks_of_kernels_are_filled_by_name():
    """`store_word` and `load_word` are for lists of words: a slot with a name is a record's (cpu/simd/records.py), or
    an argument's."""
    kept = {f"numbaprims.cpu.{name}" for name in BY_NUMBER}
    wrong = [
        where(path, call.lineno)
        for path in sorted((PACKAGE / "cpu").rglob("*.py"))
        if name_of(path) not in kept and PACKAGE / "cpu" / "simd" not in path.parents
        for name in ("store_word", "load_word")
        for call in calls_of(path, name)
        if is_number(call.args[1]) and (name == "store_word" or ast.unparse(call.args[0]) == "args")
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_adds_up_places_in_scratch_memory():
    """Regions have names, and their program places them (cpu/regions.py)."""
    wrong = []
    for path in sorted((PACKAGE / "cpu").glob("*/**/*.py")):
        if PACKAGE / "cpu" / "simd" in path.parents:
            continue
        lines = [call.lineno for call in calls_of(path, "round_up") if ast.unparse(call.args[1]) in ("64", "LINE")]
        lines += [call.lineno for call in calls_of(path, "Bind") if ast.unparse(call.args[0]) == "SCRATCH"]
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in ("workspace", "worker_bytes", "shared_bytes"):
                lines += [node.lineno] if ast.unparse(node.value) == "args" else []
            if isinstance(node, ast.BinOp) and ast.unparse(node).endswith("// 64) * 64"):
                lines.append(node.lineno)
        wrong += [where(path, line) for line in lines]
    assert not wrong, "\n".join(wrong)


# A word of the house (CONTRIBUTING.md) -> the modules whose class of that name means it; solvers may have it.
SENSES = {
    "Form": {
        "cpu.pointwise.form", "cpu.rnn.cells", "cpu.stack.emit", "gpu.pointwise.form", "gpu.rnn.cells",
        "gpu.reduce.kernels", "cpu.windows.overlaps",
    },
    "Plan": {"ops.plans", "gpu.reduce.plans"},
    "Posed": {"dispatch.choose"},
    "Work": {"gpu.gemm.cost"},
    "Blocks": set(),
    "Direct": set(),
}  # fmt: skip
# Who has a method `plan`: of a public function, which makes a plan; and the word of a table of the reduce engine.
PLANS = {"ops.gemm_plan", "ops.conv_plan", "ops.rnn", "fusion.calls", "bench.stems.conv_operands", "cpu.reduce.memory"}


def test_a_word_has_one_sense():
    found: dict[str, set[str]] = {word: set() for word in SENSES}
    planners = set()
    for path in MODULES:
        module = name_of(path).removeprefix("numbaprims.")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.name == "plan":
                planners.add(module)
            if not isinstance(node, ast.ClassDef) or node.name.lstrip("_") not in SENSES:
                continue
            named = [ast.unparse(each.value) for each in node.body if isinstance(each, ast.Assign)]
            if repr(node.name.lower()) not in named:  # a solver's `name`
                found[node.name.lstrip("_")].add(module)
    assert found == SENSES
    assert planners == PLANS


def test_top_modules_do_not_share_names_with_public_functions():
    # `import numbaprims.gemm` would otherwise replace the function by a module.
    top = {path.stem for path in PACKAGE.glob("*.py")} | {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not top & set(numbaprims._LAZY)


def test_locks_survive_forks():
    # cpu/threads.py makes its own anew, with the rest of what it knows
    wrong = [
        where(path, node.lineno)
        for path in MODULES
        if path not in (PACKAGE / "forks.py", PACKAGE / "cpu" / "threads.py")
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("Lock", "RLock") and ast.unparse(node).startswith("thr")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_modules_is_a_package():
    # a folder without is found on a disk, but not in a zip file
    assert [folder for folder in {path.parent for path in MODULES} if not (folder / "__init__.py").exists()] == []


def test_nothing_is_parked():
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    wrong = [
        where(path, number)
        for path in PYTHON
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
        # dispatch holds the contracts that solvers fill in; nothing else may be left open
        or ("raise NotImplementedError" in line and PACKAGE / "dispatch" not in path.parents)
    ]
    assert not wrong, "\n".join(wrong)
