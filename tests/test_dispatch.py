"""The dispatcher: the choice of a solver, kept launchers, `explain`, what a logged call says, what solvers promise."""

import argparse
import html
import importlib
import logging
import math
import os
import re
import subprocess
import sys
import threading

import conv_cases
import numpy as np
import pytest
from helpers import FLOATS, has_module, in_library, input_layouts, lay_out, out_layouts, sizes
from hypothesis import given, strategies as st
from solver_probes import FUNCTIONS, NO_PROBLEM, OF_BF16, PROBES, arguments, keywords

import numbaprims
from numbaprims.bench import cases, command
from numbaprims.dispatch import call, choose as choosing, launchers, registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.solver import Solver, default_config
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.stems import ENGINES

STEMS = cases.STEMS
#: Solvers that a stem has no problem for: norms have no exponentials, what is summed up is no copy.
UNUSED = {
    "activation": ("channel_sums",), "batch_norm": ("online", "turn", "bands", "lookup"),
    "softmax": ("blocks", "turn", "bands", "lookup"), **OF_BF16,
    "norm": ("online", "blocks", "turn", "bands", "lookup"), "reduce": ("online", "blocks", "turn", "bands", "lookup"),
    "tensor": ("online", "across", "split_across", "lookup"), "quantize": ("online", "turn", "bands"),
}  # fmt: skip
SOLVERS = [(stem, solver) for stem in STEMS for solver in registry.solvers(stem, "cpu")]
EACH_SOLVER = pytest.mark.parametrize("stem, solver", SOLVERS, ids=[f"{stem}-{s.name}" for stem, s in SOLVERS])


# ---------------------------------------------------------------- the choice


class Toy(Problem):
    stem = "toy"

    def __repr__(self):
        return "Toy <1 & 2>"

    def bench_command(self):
        return "numbaprims bench toy"


class Stub(Solver):
    """A solver that takes `seconds`, or refuses."""

    def __init__(self, name, seconds, refusal=None):
        self.name, self.seconds, self.refusal = name, seconds, refusal

    def why_not(self, problem, target):
        return self.refusal

    def estimate(self, problem, target):
        assert self.refusal is None, "a solver that refuses is asked for an estimate"
        return self.seconds

    def configs(self, problem, target):
        return ({"block": len(self.name)}, {"block": 0})

    def bind(self, problem, target, config):
        return lambda *arrays: (self.name, config)


@pytest.fixture
def toys(monkeypatch):
    """A function that puts solvers of the stem "toy" into the registry."""
    real = registry.solvers

    def put(*solvers):
        monkeypatch.setattr(registry, "solvers", lambda stem, dev: solvers if stem == "toy" else real(stem, dev))

    return put


def test_the_least_estimate_wins(toys):
    toys(Stub("slow", 3), Stub("fast", 1.0), Stub("none", 0.0, "it cannot"), Stub("middle", 2.0))
    choice = choosing.choose(Toy(), "cpu")
    assert choice.solver.name == "fast" and choice.rule == "least estimated time"
    assert choice.config == {"block": 4}, "the first of its configs"
    assert [c.solver.name for c in choice.candidates] == ["slow", "fast", "none", "middle"]
    assert [c.estimate for c in choice.candidates] == [3.0, 1.0, math.inf, 2.0]
    assert [c.refusal for c in choice.candidates] == [None, None, "it cannot", None]


@pytest.mark.parametrize("names", [("first", "second", "third"), ("third", "second", "first")])
def test_ties_keep_the_order_of_the_list(toys, names):
    toys(Stub("slower", 2.0), *(Stub(name, 1.0) for name in names))
    assert choosing.choose(Toy(), "cpu").solver.name == names[0]


def test_a_forced_solver_wins_over_estimates(toys):
    toys(Stub("fast", 1.0), Stub("slow", 100.0), Stub("none", 0.0, "7 is odd"))
    choice = choosing.choose(Toy(), "cpu", (("gemm", "fast"), ("toy", "slow")))
    assert choice.solver.name == "slow" and choice.rule == "forced by the settings"
    assert [each.solver.name for each in choice.candidates] == ["slow"], "nobody asks the others"
    assert len(choosing.choose(Toy(), "cpu", (("toy", "slow"),), every=True).candidates) == 3
    assert choosing.choose(Toy(), "cpu", (("gemm", "slow"),)).solver.name == "fast", "forced for another stem"
    assert choosing.choose(Toy(), "cpu", ()).solver.name == "fast"
    with pytest.raises(ValueError, match="toy has no solver 'fastest'; it has fast, slow, none"):
        choosing.choose(Toy(), "cpu", (("toy", "fastest"),))
    with pytest.raises(ValueError, match="toy:none was asked for, but 7 is odd"):
        choosing.choose(Toy(), "cpu", (("toy", "none"),))


def test_nothing_able_is_an_error_with_every_reason(toys):
    toys(Stub("one", 1.0, "it is too large"), Stub("two", 1.0, "it is too small"))
    with pytest.raises(RuntimeError, match="no toy solver.*one: it is too large; two: it is too small"):
        choosing.choose(Toy(), "cpu")


def test_bind_follows_the_settings(toys, capfd):
    toys(Stub("fast", 1.0), Stub("slow", 2.0), Stub("none", 0.0, "it cannot"))
    bound = call.bind(Toy(), (2, 3), "f32", extra="more")
    assert bound.launch() == ("fast", {"block": 4}) and bound.solver.name == "fast"
    assert (bound.shape, bound.dtype, bound.extra) == ((2, 3), "f32", "more")
    assert not capfd.readouterr().err
    with numbaprims.config(algorithm={"toy": "slow"}, verbose=2):
        bound = call.bind(Toy(), (), "f32")
    assert bound.solver.name == "slow" and bound.rule == "forced by the settings"
    assert capfd.readouterr().err == "numbaprims: toy: none refuses: it cannot\n"
    call.log_call(bound)
    assert capfd.readouterr().err == "numbaprims: numbaprims bench toy  # slow, forced by the settings\n"


# ---------------------------------------------------------------- launchers


def bound(name):
    return call.Bound(lambda: None, None, Stub(name, 1.0), {}, "", (), "f32")


def test_launchers_are_bounded_and_the_oldest_go():
    kept = call.Launchers(capacity=3)
    all_ = [kept.put(key, bound(str(key))) for key in range(5)]
    assert len(kept) == 3
    assert [kept.get(key) for key in range(5)] == [None, None, *all_[2:]]
    again = bound("again")
    assert kept.put(3, again) is all_[3] and kept.get(3) is all_[3], "what is known stays"
    assert len(kept) == 3 and kept.get(2) is all_[2], "a known key drives nobody out"
    get = kept.get
    kept.clear()
    assert len(kept) == 0 and get(3) is None
    assert kept.put(3, again) is again and get(3) is again
    assert launchers.CAPACITY == call.Launchers()._capacity == 1024


def test_threads_that_bind_the_same_key_get_one_launcher():
    kept, barrier, found = call.Launchers(), threading.Barrier(8), []

    def work(which):
        for key in range(200):
            mine = bound(str(which))
            barrier.wait()
            found.append((key, kept.put(key, mine)))

    running = [threading.Thread(target=work, args=(which,)) for which in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(found) == 8 * 200 and len(kept) == 200
    assert all(got is kept.get(key) for key, got in found)


def test_a_look_up_takes_no_lock():
    kept, got = call.Launchers(), []
    kept.put("key", bound("a"))
    with kept._lock:
        reader = threading.Thread(target=lambda: got.append(kept.get("key")), daemon=True)
        reader.start()
        reader.join(10)
        assert got and got[0].solver.name == "a"


# ---------------------------------------------------------------- explain


@pytest.fixture
def nothing_runs(monkeypatch):
    """No solver may be bound: explaining compiles and runs nothing."""

    def bind(self, problem, target, config):
        raise AssertionError(f"{self} was bound")

    for _, solver in SOLVERS:
        monkeypatch.setattr(type(solver), "bind", bind)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_explain_knows_every_public_function(nothing_runs, name):
    given, words, function = arguments(name), keywords(name), getattr(numbaprims, name)
    given_arrays = [x for x in given if isinstance(x, np.ndarray)]
    before = [np.array(x) for x in given_arrays]
    table = numbaprims.explain(function, *given, **words)
    by_name = numbaprims.explain(name, *given, **words)
    assert table.problem == by_name.problem == problem_of(name, *given, **words)
    solvers = registry.solvers(table.problem.stem, "cpu")
    assert [row.solver for row in table] == [solver.name for solver in solvers]
    assert len(table) == len(solvers) and [row.chosen for row in table].count(True) == 1
    able = [row for row in table if row.refusal is None]
    assert table.chosen.estimate == min(row.estimate for row in able) and table.rule == "least estimated time"
    for row, solver in zip(table, solvers, strict=True):
        assert table[solver.name] is row and row.measured is None
        if row.refusal is None:
            assert 0 < row.estimate < 1 and solver.is_valid(table.problem, registry.target("cpu"), row.config)
        else:
            assert math.isinf(row.estimate) and not row.config
            assert len(row.refusal.split()) >= 4, f"{row.refusal!r} is no sentence"
    for x, old in zip(given_arrays, before, strict=True):
        np.testing.assert_array_equal(x, old)


def test_functions_that_are_not_ours_are_refused():
    x = np.ones(3)
    for function in ("nope", "__version__", len, np.exp, np.tanh, lambda x: x, numbaprims.gemm.plan, None):
        with pytest.raises(ValueError, match="is not a public function of numbaprims"):
            numbaprims.explain(function, x)
    for name in NO_PROBLEM:
        with pytest.raises(ValueError, match="poses no problem"):
            numbaprims.explain(name, x)


def test_explain_raises_what_the_call_would_raise(nothing_runs):
    a, read_only = np.ones((4, 6), np.float32), np.ones((4, 4), np.float32)
    read_only.flags.writeable = False
    for error, name, args, kwargs in (
        (ValueError, "gemm", (a, a), {}),
        (ValueError, "gemm", (a, a.T), {"out": read_only}),
        (TypeError, "gemv", (a, np.ones(6)), {}),
        (ValueError, "ger", (a[0], a[1]), {"a": np.ones((3, 3), np.float32)}),
        (TypeError, "relu", (np.ones(3, np.int32),), {}),
        (TypeError, "relu", (a,), {"slope": 1.0}),
        (ValueError, "activation", (a, "rleu"), {}),
        (TypeError, "threshold", (a,), {}),
    ):
        for function in (getattr(numbaprims, name), lambda *x, name=name, **k: numbaprims.explain(name, *x, **k)):
            with pytest.raises(error):
                function(*args, **kwargs)


@pytest.mark.parametrize("asking", [numbaprims.explain, numbaprims.find])
def test_a_wrong_call_is_named_as_the_user_knows_it(asking):
    x = np.ones((3, 3), np.float32)
    for words, args, kwargs in (
        (r"gemm: missing a required argument: 'b'; give the arguments of the call, gemm\(a, b, c=None, ", (x,), {}),
        (r"gemm: too many positional arguments; ", (x, x, x), {}),
        (r"gemm: got an unexpected keyword argument 'foo'; ", (x, x), {"foo": 3}),
    ):
        with pytest.raises(TypeError, match=f"^{words}"):
            asking("gemm", *args, **kwargs)


def test_explain_honours_a_forced_solver(nothing_runs):
    a = np.ones((4, 6), np.float32)
    with numbaprims.config(algorithm={"gemv": "naive"}):
        table = numbaprims.explain("gemv", a, a[0])
        assert table.chosen.solver == "naive" and table.rule == "forced by the settings"
        assert table["naive"].estimate >= min(row.estimate for row in table)
        assert "forced" in str(table)
    with numbaprims.config(algorithm={"gemv": "nope"}), pytest.raises(ValueError, match="no solver 'nope'"):
        numbaprims.explain("gemv", a, a[0])


def test_a_table_can_be_read(toys, monkeypatch):
    toys(Stub("fast & small", 2.5e-6), Stub("slow", 3.0), Stub("none", 0.0, "m < 3, see <why>"))
    from numbaprims.ops import gemv

    monkeypatch.setitem(gemv.PROBLEMS, "gemv", lambda a, x: Toy())
    table = numbaprims.explain("gemv", 0, 0)
    lines = str(table).splitlines()
    assert repr(table) == str(table) == table.table()
    assert lines[:2] == ["numbaprims bench toy", "chosen: fast & small (least estimated time)"]
    assert lines[3].startswith("*  fast & small  2.5 us") and "measured" not in lines[2]
    assert lines[-2] == "refused: none: m < 3, see <why>" and lines[-1].startswith("estimates by: ")
    lines = table.table(wide=True).splitlines()
    assert lines[:2] == ["Toy <1 & 2>", "chosen: fast & small (least estimated time)"]
    heading, *rows, rates = lines[2:]
    assert heading.split()[:2] == ["solver", "estimate"] and len(rows) == 3 and rates.startswith("estimates by: ")
    assert rows[0].startswith("*  fast & small  2.5 us") and "block=12" in rows[0]
    assert rows[1].startswith("   slow ") and "3 s" in rows[1]
    assert rows[2].endswith("m < 3, see <why>") and f"{__file__}:" in rows[2]
    starts = [row.index(__file__) for row in rows]
    assert len(set(starts)) == 1 and heading.index("source") == starts[0], "columns are aligned"
    page = table._repr_html_()
    assert page.count("<tr>") == 4 and page.count("</td>") == 3 * len(table.HEADINGS) and page.count("<table>") == 1
    assert html.escape("m < 3, see <why>") in page and "<why>" not in page and "fast &amp; small" in page
    with pytest.raises(KeyError, match="no solver 'nope'; there are fast & small, slow, none"):
        table["nope"]


def test_explain_takes_a_problem_as_find_does():
    problem = numbaprims.explain("ger", np.ones(29, np.float32), np.ones(29, np.float32)).problem
    table = numbaprims.explain(problem, measure=True, device="cpu")
    assert table.problem is problem and all(row.measured for row in table if row.refusal is None)
    with pytest.raises(TypeError, match="explain takes a problem alone"):
        numbaprims.explain(problem, 3)


def test_measured_times_come_from_each_solver_and_out_is_left_alone(monkeypatch):
    x = np.linspace(-1, 1, 23, dtype=np.float32)
    out, kept = np.full((23, 23), 7, np.float32), x.copy()
    ran, choose = [], choosing.choose
    monkeypatch.setattr(choosing, "choose", lambda *a, **how: ran.append(choose(*a, **how)) or ran[-1])
    table = numbaprims.explain("ger", x, x, out=out, measure=True)
    assert (out == 7).all() and (x == kept).all()
    able = [row.solver for row in table if row.refusal is None]
    assert len(able) > 1
    assert [choice.solver.name for choice in ran[1:]] == able, "each was bound once, forced"
    for row in table:
        assert (row.measured is None) == (row.refusal is not None)
        assert row.measured is None or 1e-7 < row.measured < 1.0
    again = numbaprims.explain("ger", x, x, out=out)
    assert [row.measured for row in again] == [row.measured for row in table], "measured times stay known"
    assert numbaprims.explain("ger", x, x[1:]).chosen.measured is None


# ---------------------------------------------------------------- what a logged call says


def parsed(line):
    """The one case of the bench suites that a logged line names, and the solver and rule it gives."""
    match = re.fullmatch(r"numbaprims: (.*)  # (\w+), (.*)", line)
    assert match, line
    program, bench, *words = match[1].split()
    assert (program, bench) == ("numbaprims", "bench")
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    options = parser.parse_args(words)
    (case,) = cases.stem_module(options.subject).cases(options)
    return case, match[2], match[3]


A, X = np.ones((5, 7), np.float32), np.ones(7, np.float32)
LOGGED = [
    ("gemm", "gemm", (A, A), {"trans_b": True}, "5x5x7", {"trans_b": True}),
    ("gemm", "gemm", (A, A), {"trans_a": True, "bias": X}, "7x7x5", {"trans_a": True, "bias": True}),
    ("linear", "gemm", (A, A), {"activation": "relu"}, "5x5x7", {"trans_b": True, "activation": "relu"}),
    ("gemm", "gemm", (np.ones((3, 5, 7), np.float32), np.ones((3, 7, 2), np.float32)), {}, "5x2x7", {"batch": 3}),
    ("gemv", "gemv", (A, X), {}, "5x7", {}),
    ("gemv", "gemv", (A, X[:5]), {"trans": True}, "5x7", {"trans": True}),
    ("ger", "ger", (X[:5], X), {}, "5x7", {}),
    ("gelu", "activation", (A,), {}, "35", {"kind": "gelu"}),
    ("swish", "activation", (A,), {}, "35", {"kind": "silu"}),
    ("exp_backward", "activation", (A, A), {}, "35", {"kind": "exp", "backward": True}),
]


@pytest.mark.parametrize("name, stem, args, kwargs, shape, switches", LOGGED)
def test_verbose_calls_name_their_benchmark(capfd, name, stem, args, kwargs, shape, switches):
    with numbaprims.config(verbose=1, algorithm={stem: "naive"}):
        for _ in range(3):  # the first call and the short way
            getattr(numbaprims, name)(*args, **kwargs)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1, "one line a call"
    case, solver, rule = parsed(lines[0])
    assert (case.stem, case.shape, case.dtype) == (stem, shape, "f32")
    assert dict(case.switches) == switches
    assert solver == "naive" and rule == "forced by the settings"
    with numbaprims.config(verbose=0, algorithm={stem: "naive"}):
        getattr(numbaprims, name)(*args, **kwargs)
    assert not capfd.readouterr().err


def test_the_environment_switches_it_on():
    code = "import numpy as np, numbaprims\nfor _ in 'ab': numbaprims.ger(np.ones(5, 'f4'), np.ones(7, 'f4'))"
    env = dict(os.environ, NUMBAPRIMS_VERBOSE="1", NUMBAPRIMS_ALGORITHM="ger:naive")
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    first, second = run.stderr.splitlines()
    case, solver, _ = parsed(first)
    assert first == second and case.shape == "5x7" and solver == "naive" and not run.stdout


def test_lines_go_to_the_programs_own_logger(capfd, caplog):
    logger = logging.getLogger("numbaprims")
    old = logger.level
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    try:
        call.log_line("one line")
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(old)
    assert "one line" in caplog.messages and not capfd.readouterr().err
    call.log_line("another")
    assert capfd.readouterr().err == "numbaprims: another\n"


# ---------------------------------------------------------------- what every solver promises


@pytest.mark.parametrize("stem", STEMS)
def test_names_differ_and_the_naive_solver_comes_last(stem):
    solvers = registry.solvers(stem, "cpu")
    names = [solver.name for solver in solvers]
    assert len(set(names)) == len(names) >= 2 and names[-1] == "naive"
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
    assert all(isinstance(solver.version, int) and solver.version >= 1 for solver in solvers)
    assert len({type(solver) for solver in solvers}) == len(solvers)


@EACH_SOLVER
def test_source_is_where_the_class_stands(stem, solver):
    path, line = solver.source()
    with open(path, encoding="utf-8") as file:
        text = file.read().splitlines()[line - 1]
    assert re.match(rf"class {type(solver).__name__}\b", text), f"{path}:{line}: {text}"
    assert f"numbaprims{os.sep}cpu{os.sep}{ENGINES.get(stem, stem)}{os.sep}" in path


@EACH_SOLVER
def test_first_configs_are_valid_and_estimates_are_seconds(stem, solver):
    target, taken = registry.target("cpu"), 0
    with numbaprims.config(accuracy="fast"):  # under which every solver may be asked
        for function, args, kwargs in PROBES[stem]:
            problem = problem_of(function, *args, **kwargs)
            if solver.why_not_asked(problem, target) is None:
                taken += 1
                config = default_config(solver, problem, target)
                assert solver.is_valid(problem, target, config)
                assert not solver.is_valid(problem, target, {**config, "no such tunable": 1})
                assert 0 < solver.estimate(problem, target) < 10
                assert solver.workspace(problem, target, config) >= 0
    # public calls pose the problem of sums beside another; an engine's solvers are for all of its stems
    if solver.name not in UNUSED.get(stem, ()):
        assert taken, "it refuses every probe"


@pytest.mark.parametrize("stem", [stem for stem in STEMS if stem not in ENGINES])  # those: test_contract.py
@given(data=st.data())
def test_the_naive_solver_refuses_nothing_legal(stem, data):
    draw = data.draw
    dtype = draw(st.sampled_from([d for d in FLOATS if d != "bf16" or has_module("ml_dtypes")]))
    storage = {"f64": np.float64, "f32": np.float32}.get(dtype, np.uint16)

    def array(*shape, out=False):
        layout = draw(out_layouts() if out else input_layouts())
        return in_library(lay_out(np.ones(shape, storage), layout), dtype)

    m, n, k = draw(sizes(70)), draw(sizes(70)), draw(sizes(70))
    maybe, beta = draw(st.booleans()), draw(st.sampled_from([0.0, 1.0, -0.5]))
    if stem == "gemm":
        batch = draw(st.sampled_from([(), (2,), (2, 3)]))
        shared = draw(st.booleans())
        args = (array(*batch, m, k), array(*(() if shared else batch), k, n))
        kwargs = {"alpha": draw(st.sampled_from([1.0, 2.0])), "beta": beta, "c": array(m, n) if beta else None}
        kwargs["bias"] = array(*draw(st.sampled_from([(n,), (1, n), (m, 1)]))) if maybe else None
        kwargs["activation"] = draw(st.sampled_from([None, "relu", "gelu", ("elu", {"alpha": 0.5})]))
        kwargs["out"] = array(*batch, m, n, out=True) if draw(st.booleans()) else None
        function = "gemm"
    elif stem == "gemv":
        function, args = "gemv", (array(m, n), array(m if maybe else n))
        kwargs = {"trans": maybe, "beta": beta, "y": array(n if maybe else m) if beta else None}
    elif stem == "ger":
        function, args = "ger", (array(m), array(n))
        kwargs = {"a": array(m, n) if maybe else None, "out": array(m, n, out=True) if beta else None}
    elif stem == "conv":
        case = draw(conv_cases.cases(12))
        direction, layout = draw(st.sampled_from(conv_cases.DIRECTIONS)), draw(st.sampled_from(("NCHW", "NHWC")))
        more, kwargs = conv_cases.arguments(case, direction, layout)
        layouts = conv_cases.operand_layouts(direction, layout)
        shapes = [
            (s[0], *s[2:], s[1]) if of == "NHWC" else s
            for s, of in zip(case.operand_shapes(direction), layouts, strict=True)
        ]
        function, args = conv_cases.FUNCTIONS[direction], (*(array(*shape) for shape in shapes), *more)
    else:
        kind = draw(st.sampled_from([kind for kind in KINDS if kind not in ("prelu", "glu", "threshold")]))
        function = "activation_backward" if maybe else "activation"
        args = (*(array(m, n, k) for _ in range(3 if maybe else 1)), kind)
        kwargs = {"out": array(m, n, k, out=True) if beta else None}
    table = numbaprims.explain(function, *args, **kwargs)
    assert table["naive"].refusal is None and 0 < table["naive"].estimate < math.inf
    assert all(0 < row.estimate < math.inf for row in table if row.refusal is None)


def test_the_naive_integer_product_refuses_nothing():
    for a in (np.uint8, np.int8):
        left, right = np.ones((3, 5), a), np.ones((5, 4), np.int8)
        table = numbaprims.explain("gemm", left, right, bias=np.ones(4, np.int32), activation="relu")
        assert table["naive"].refusal is None


def test_solvers_of_a_stem_are_found_by_path():
    for stem in STEMS:
        found = registry.solvers(stem, "cpu")
        assert found is registry.solvers(stem, "cpu") and isinstance(found, tuple)
        assert found == tuple(importlib.import_module(f"numbaprims.cpu.{ENGINES.get(stem, stem)}").SOLVERS)
    with pytest.raises(ModuleNotFoundError):
        registry.solvers("no_such_stem", "cpu")
