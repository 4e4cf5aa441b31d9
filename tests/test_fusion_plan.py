"""FusionPlan: MIOpen's tables I and II against the functions one by one, and what is wider here."""

import itertools

import pytest
from fusion_plan_cases import FILTERS, HALVES, MODES, Data, check, convolved, integers, table_plan

import numbaprims
from numbaprims import FusionPlan
from numbaprims.fusion import miopen

# ---------------------------------------------------------------- tables I and II


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filter", FILTERS)
def test_cbna_by_definition(filter, mode, dtype):
    """Every activation of a filter, through the graph and past the kernels, and each with every stride and padding of
    some filter."""
    places = list(itertools.product((1, 2), (1, 2)))
    for seed, kind in enumerate(miopen.OURS, FILTERS.index(filter) + MODES.index(mode)):
        data, (stride, padding) = Data(dtype, seed), places[seed % 4]
        plan, x, before = table_plan(
            data, "CBNA", size=10, filter=filter, stride=stride, padding=padding, mode=mode, kind=kind
        )
        with numbaprims.config(device="reference"):
            check(plan(x), before, kind, dtype)
        assert plan.launches == 1 and len(plan._calls) == (1 if mode == "spatial" else 2)
        assert miopen.verdict(plan.operators)[0] == (dtype in miopen.TABLES and kind in miopen.MODES)


@pytest.mark.parametrize("dtype", HALVES)
def test_cba_and_na_by_definition(dtype):
    for kind, (letters, mode) in itertools.product(miopen.OURS, [("CBA", ""), *(("NA", mode) for mode in MODES)]):
        data = Data(dtype)
        plan, x, before = table_plan(data, letters, mode=mode, kind=kind)
        with numbaprims.config(device="reference"):
            check(plan(x), before, kind, dtype)
        assert plan.launches == 1
        in_table = dtype == "f32" or dtype == "f16" and letters == "CBA"
        assert miopen.verdict(plan.operators)[0] == (in_table and kind in miopen.MODES)


@pytest.mark.parametrize("kind", miopen.OURS)
def test_tables_by_kernels(kind):
    """Every activation in every combination; filters and strides alternate, and modes of what MIOpen does not have."""
    at = miopen.OURS.index(kind)
    words = {"filter": FILTERS[at % 5], "stride": 1 + at % 2, "padding": 1 + at // 2 % 2, "kind": kind}
    for letters, more in (("CBNA", words), ("CBA", {"kind": kind}), ("NA", {"kind": kind})):
        for mode in (MODES if kind in miopen.MODES else MODES[at % 2 :][:1]) if "N" in letters else MODES[:1]:
            plan, x, before = table_plan(Data("f32", 1 + at), letters, mode=mode, **more)
            check(plan(x), before, kind, "f32")


@pytest.mark.parametrize("filter, dtype", [
    (filter, dtype) for dtype in HALVES for filter in (FILTERS if dtype != "bf16" else (3, 11))
])  # fmt: skip
def test_cbna_by_kernels(filter, dtype):
    for stride, padding, mode, fold in itertools.product((1, 2), (1, 2), MODES, (True, False)):
        words = {"filter": filter, "stride": stride, "padding": padding, "mode": mode, "fold": fold}
        plan, x, before = table_plan(Data(dtype, filter), "CBNA", **words)
        check(plan(x), before, "relu", dtype)
        assert plan.launches == 1 and len(plan._calls) == (1 if fold and mode == "spatial" else 2)


# ---------------------------------------------------------------- what MIOpen asks, and what is wider here


def channels_asked(row):
    """The fewest channels that a row of Winograd takes, and one fewer where there is one."""
    c = -(-18 // row.factor) if row.factor else 1
    c += row.even and c % 2
    return c


@pytest.mark.parametrize("kind", ["relu", "leaky_relu"])
@pytest.mark.parametrize("row", miopen.TABLES["f32"][2:-1], ids=lambda row: f"{row.strides[0]}-{row.filters}")
def test_winograd_rows(row, kind):
    """Each filter of a row at the limit of its channels and below it, where MIOpen refuses and we do not."""
    low, high = row.filters
    asked = channels_asked(row)
    for filter in range(low, (high or low + 1) + 1):
        for c in {asked, max(1, asked - 1)}:
            data = Data("f32", filter)
            words = {"filter": filter, "stride": row.strides[0], "padding": (filter + 1) // 2, "c": c, "kind": kind}
            plan, x, before = table_plan(data, "CBA", size=13, **words)
            with numbaprims.config(device="reference"):
                check(plan(x), before, kind, "f32")
            takes, rows = miopen.verdict(plan.operators)
            assert takes == (c == asked) and plan.launches == 1
            line = rows[miopen.TABLES["f32"].index(row) - 1]
            assert line.endswith("takes it") or f"(c is {c})" in line
            assert f"MIOpen: {'fuses it' if takes else 'does not fuse it'}; here it is one call" in plan.explain()


def test_winograd_by_kernels():
    """Channels below and above MIOpen's limits; ours is asked for by its name."""
    for c, kind in itertools.product((3, 17, 18), ("relu", "leaky_relu")):
        data = Data("f32", c)
        x, weight, bias = data.images((1, c, 10, 10)), data.images((4, c, 3, 3)), integers(data.rng, 4)
        plan = FusionPlan(x.shape)
        data.set(plan, plan.conv(weight.shape, padding=1, algorithm="winograd_2x2"), weight=weight)
        data.set(plan, plan.bias(), bias=bias)
        plan.activation(kind)
        assert plan.compile() and "call 1: conv, solver winograd_2x2" in plan.explain()
        check(plan(data.array(x)), convolved(x, weight, 1, 1) + bias[:, None, None], kind, "f32")


def test_miopens_tables_are_the_papers():
    rows = {dtype: [row.cells() for row in table] for dtype, table in miopen.TABLES.items()}
    assert [len(table) for table in rows.values()] == [14, 2]
    assert rows["f32"][0][1:5] == ["Direct", "1 and 2", "3x3, 5x5, 7x7, 9x9, 11x11", "All"]
    asks = [row[6] for row in rows["f32"]]
    assert asks == [
        "stride and padding must be either 1 or 2", "stride and padding not supported", "c >= 18",
        "c >= 18 and c is even", "4 x c >= 18", "12 x c >= 18", "16 x c >= 18", "none", "2 x c >= 18", "4 x c >= 18",
        "12 x c >= 18", "16 x c >= 18", "none", "padding not supported",
    ]  # fmt: skip
