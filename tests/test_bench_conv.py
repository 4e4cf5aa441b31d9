"""The benchmark of conv: its suites, its rivals, its targets; and the figures that `numbaprims reproduce` draws."""

import argparse
from collections import Counter

import conv_nets
import numpy as np
import pytest

from numbaprims.bench import cases, command, figures, onnx_model, report, results, runner, session, table, targets
from numbaprims.bench.figures import miopen_figure6
from numbaprims.bench.stems import conv, conv_operands, conv_solvers, conv_suites
from numbaprims.cli import reproduce as cli_reproduce
from numbaprims.reference import conv as reference
from numbaprims.tuning.timing import Schedule

# Suites -----------------------------------------------------------------------------------------------

# Multiply-adds of the convolutions for one image, as they are published; GoogLeNet's 1.5e9 are those of its form
# with 3x3 in place of 5x5, which torchvision has.
GIGA = {"resnet50": 4.1, "vgg16": 15.3, "mobilenet": 0.57, "inception-v3": 5.7, "inception-v4": 12.3}


@pytest.mark.parametrize("name", GIGA)
def test_the_walk_through_a_network_has_its_published_size(name):
    assert conv_nets.NETS[name]().multiply_adds / 1e9 == pytest.approx(GIGA[name], rel=0.03)


def test_googlenet_has_its_published_size():
    assert conv_nets.googlenet(five=3).multiply_adds / 1e9 == pytest.approx(1.5, rel=0.03)
    assert conv_nets.googlenet().multiply_adds / 1e9 == pytest.approx(1.58, rel=0.03)


@pytest.mark.parametrize("name", conv_nets.NETS)
def test_a_suite_has_the_layers_of_its_network(name):
    walked = conv_nets.NETS[name]()
    listed: Counter[conv_nets.Layer] = Counter()
    for layer in conv_suites.layers(cases.load_suites("conv")[name], [1]):
        assert layer.stride[0] == layer.stride[1] and layer.dilation == (1, 1) and layer.n == 1
        key = conv_nets.Layer(
            layer.c, layer.h, layer.w, layer.k, layer.r, layer.s, layer.stride[0], layer.padding, layer.groups
        )
        assert key not in listed, "a layer stands once, with its count"
        listed[key] = layer.count
        assert layer.output == key.out
        assert layer.flops == 2 * key.multiply_adds
    assert listed == walked.layers


def test_deepbench_is_there():
    found = conv_suites.layers(cases.load_suites("conv")["deepbench"], [1])
    assert len(found) == len(set(found)) == 191, "its 217 rows without 26 repeated ones"
    assert {layer.n for layer in found} == {1, 2, 4, 8, 16, 32}
    speech = next(layer for layer in found if layer.s == 20)
    assert (speech.r, speech.h, speech.w) == (5, 161, 700)
    assert all(min(layer.output) > 0 for layer in found)


# Cases ------------------------------------------------------------------------------------------------


def options(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["conv", *words])


def chosen(*words):
    return cases.stem_module("conv").cases(options(*words))


def test_every_suite_gives_cases_once():
    found = chosen("--shapes", "all", "--batch", "1,16", "--direction", "forward,data,weight")
    labels = [(case.suite, case.label) for case in found]
    assert len(set(labels)) == len(labels)
    networks = sum(len(network().layers) for network in conv_nets.NETS.values())
    assert len(found) == 3 * (2 * networks + 191)
    assert chosen() == chosen("--suite", "resnet50,vgg16,mobilenet,depthwise5x5,first")


def test_a_case_is_what_its_command_says():
    words = "--n 2 --c 8 --h 9 --w 10 --k 12 --r 3 --s 5 --stride 2 --pad 1,2 --dilation 1x2 --groups 4"
    (case,) = chosen(*words.split())
    assert case.label == "2x8x9x10x12x3x5 stride 2 padding 1x2 dilation 1x2 groups 4"
    assert chosen(*case.command.split()[3:]) == [case]
    (case,) = chosen(*words.split(), "--direction", "weight", "--layout", "NHWC", "--dtype", "bf16")
    assert (case["direction"], case["layout"], case.dtype) == ("weight", "NHWC", "bf16")
    assert chosen(*case.command.split()[3:]) == [case]
    words = "--n 1 --c 4 --d 6 --h 9 --w 10 --k 6 --z 3 --r 1 --s 2 --stride 1,2,2 --pad 1,0,1"
    (case,) = chosen(*words.split())
    assert case.label == "1x4x6x9x10x6x3x1x2 stride 1x2x2 padding 1x0x1"
    assert chosen(*case.command.split()[3:]) == [case]
    (case,) = chosen("--shapes", "1x8x9x10x12x1x1", "--bias", "--activation", "relu")
    assert case.label == "1x8x9x10x12x1x1 bias activation relu"
    assert chosen(*case.command.split()[3:]) == [case]


def test_a_logged_call_names_its_case():
    from numbaprims.dispatch.explain import problem_of

    x, w = np.ones((2, 8, 9, 10), np.float32), np.ones((12, 2, 3, 5), np.float32)
    words = {"stride": 2, "padding": (1, 2), "groups": 4}
    line = problem_of("conv", x, w, **words).bench_command()
    (case,) = chosen(*line.split()[3:])
    assert case.label == "2x8x9x10x12x3x5 stride 2 padding 1x2 groups 4"
    volume = problem_of("conv", x[:, :, None], w[:, :, None], **{**words, "padding": (0, 1, 2)}).bench_command()
    assert chosen(*volume.split()[3:])[0]["h"] == 9
    volume = problem_of("conv", np.ones((1, 4, 6, 9, 10), np.float32), np.ones((6, 4, 3, 1, 2), np.float32),
                        stride=(1, 2, 2), padding=(1, 0, 1)).bench_command()  # fmt: skip
    assert chosen(*volume.split()[3:])[0].label == "1x4x6x9x10x6x3x1x2 stride 1x2x2 padding 1x0x1"
    dy = np.ones((2, 12, 5, 5), np.float32)
    line = problem_of("conv_backward_data", dy, w, x.shape, **words).bench_command()
    (case,) = chosen(*line.split()[3:])
    assert case.label == "2x8x9x10x12x3x5 stride 2 padding 1x2 groups 4 direction data"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--direction", "back"], "direction: 'back'.*weight"),
        (["--shapes", "1x2x3"], "shapes: '1x2x3'"),
        (["--c", "8", "--k", "3"], "sizes: --h --w --r --s missing"),
        (["--shapes", "1x8x9x9x9x3x3", "--groups", "3"], "groups: 3.*8 and of 9"),
        (["--shapes", "1x8x2x2x9x3x3"], "filter 3x3"),
        (["--shapes", "1x8x9x9x9x3x3", "--stride", "1x2x3"], "'1x2x3'"),
        (["--stride", "0"], "stride: '0' given, but the layers of the suite resnet50 have their own"),
        (["--shapes", "resnet50", "--padding=-1"], "padding: '-1' given, but the layers of the suite resnet50"),
        (["--quick", "--dilation", "2x1"], "dilation: '2x1' given"),
        (["--quick", "--groups", "2"], "groups: 2 given"),
    ],
)
def test_wrong_arguments_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        chosen(*words)


# Contenders -------------------------------------------------------------------------------------------

ODD = "--n 3 --c 8 --h 9 --w 10 --k 12 --r 3 --s 5 --stride 2x1 --pad 1,2 --dilation 1x2"
SMALL = [
    f"{ODD} --dtype f32,f64",
    f"{ODD} --groups 4 --bias",
    f"{ODD} --bias --activation relu",
    f"{ODD} --layout NHWC --bias",
    f"{ODD} --dtype bf16",
    f"{ODD} --dtype int8 --groups 2",
    f"{ODD} --direction data,weight",
    f"{ODD} --direction data,weight --groups 4 --layout NHWC",
    f"{ODD} --direction data,weight,bias --dtype bf16",
    f"{ODD} --direction bias --layout NHWC",
    "--shapes 2x4x6x9x10x6x3x1x2 --stride 1,2,2 --pad 1,0,1 --groups 2 --direction forward,data,weight,bias",
    "--shapes 2x4x6x9x10x6x3x1x2 --layout NHWC --direction forward,data,weight,bias",
    "--shapes quick --direction forward,data,weight,bias",
]


@pytest.mark.parametrize("words", SMALL)
def test_every_contender_computes_the_case(words):
    """Rivals and ours, in the very form that is timed, against the float64 definition."""
    for case in chosen(*words.split()):
        work = cases.stem_module("conv").workload(case, 1)
        assert runner.check_contenders(work) == {}, case.label
        assert cases.OURS in work.contenders and work.flops > 0 and work.bytes > 0
        assert work.solver()


def test_the_rivals_are_all_there():
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    (case,) = chosen(*ODD.split())
    found = cases.stem_module("conv").workload(case, 2).contenders
    assert set(table.RIVALS["conv"]) == set(found) - {cases.OURS} | {"numbaprims f32"}
    assert found["torch prepacked"].form and found["onnxruntime"].form


@pytest.mark.parametrize("direction", conv.DIRECTIONS)
@pytest.mark.parametrize("more", ["", "--groups 4"])
def test_an_error_in_any_channel_that_is_looked_at_is_seen(direction, more):
    (case,) = chosen(*f"{ODD} --direction {direction} {more}".split())
    work = cases.stem_module("conv").workload(case, 1)
    contender = work.contenders[cases.OURS]
    contender.call()
    good = contender.result()
    assert work.check(good) is None
    for where in (0, -1):
        bad = good.copy()
        bad.flat[where] += 0.01
        assert "off by" in work.check(bad)
    bad.flat[bad.size // 2] = np.nan
    assert "not finite" in work.check(bad)


def test_the_check_of_a_large_layer_takes_a_part_of_it():
    from numbaprims.bench.stems import conv_check

    layer = conv_suites.Layer(16, 64, 224, 224, 64, 3, 3, padding=(1, 1))
    for direction in ("forward", "data", "weight"):
        groups, channels, inputs = conv_check._part(layer, direction)
        assert list(groups) == [0] and 2 <= len(channels) < 24
        assert channels[0] == 0 and channels[-1] == 63
        assert len(inputs) == (len(channels) if direction == "weight" else 64)


def test_the_onnx_model_is_a_convolution():
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 7, 8), (6, 2, 3, 2), (6,)))
    content = onnx_model.model(
        "Conv",
        [onnx_model.Tensor("x", x.shape, "float32")],
        onnx_model.Tensor("y", (2, 6, 4, 4), "float32"),
        {"w": w, "b": b},
        {"strides": (2, 2), "pads": (1, 0, 1, 0), "dilations": (1, 1), "group": 2},
    )
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": x})
    words = {"stride": (2, 2), "padding": (1, 0), "dilation": (1, 1), "groups": 2}
    want = reference.conv(x.astype(np.float64), w.astype(np.float64), (4, 4), **words) + b[:, None, None]
    assert got.shape == want.shape and abs(want).max() > 1
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    assert [(node.name, node.shape) for node in session.get_inputs()] == [("x", [2, 4, 7, 8])]


def test_numbers_of_a_model_are_encoded_as_protocol_buffers_have_them():
    assert onnx_model._varint(0) == b"\x00" and onnx_model._varint(300) == b"\xac\x02"
    assert onnx_model._varint(-1) == b"\xff" * 9 + b"\x01"
    assert onnx_model._text(2, "ab") == b"\x12\x02ab"


# Further numbers, targets -----------------------------------------------------------------------------


def test_a_depthwise_layer_stands_under_two_roofs():
    (case,) = chosen("--shapes", "1x8x8x8x8x3x3", "--groups", "8")
    quick = Schedule(block=2e-3, settle=5e-4, rounds=3)
    found = runner.run_case(case, 1, session.Roofline(), quick)
    percents = found["roof"]["percents"]
    assert set(percents) == {"copy", "fma"} and found["roof"]["percent"] == max(percents.values())
    assert percents[found["roof"]["bound"]] == found["roof"]["percent"] > 0
    (case,) = chosen("--shapes", "1x8x8x8x8x3x3")
    assert runner.run_case(case, 1, session.Roofline(), quick)["roof"]["bound"] == "fma"


def test_a_first_call_and_the_choice_are_measured():
    (case,) = chosen(*ODD.split())
    work = cases.stem_module("conv").workload(case, 1)
    assert 0 <= work.more["cold"]() < 5
    found = work.more["regret"]()
    assert found["percent"] >= 0 and found["best"] in found["seconds"] and found["default"] in found["seconds"]
    assert min(found["seconds"].values()) == found["seconds"][found["best"]] > 0


def test_solvers_are_compared_and_the_hopeless_timed_roughly():
    import time

    calls = {"slow": 0, "fast": 0, "near": 0}

    def make(name):
        if name == "refuses":
            raise ValueError("no")

        def call():
            calls[name] += 1
            time.sleep({"slow": 0.1, "fast": 0.001, "near": 0.0015}[name])

        return call

    times = conv_solvers.solver_times(make, ["slow", "fast", "refuses", "near"], Schedule(rounds=3, min_rounds=1))
    assert set(times) == {"slow", "fast", "near"} and calls["slow"] == 2 < 10 < calls["near"]
    assert times["fast"] < times["near"] < times["slow"]


def record(label, *, suite="resnet50", percent=50.0, dtype="f32", more=(), **speedups):
    (case,) = chosen("--shapes", label, *more)
    return {
        "stem": "conv", "suite": suite, "label": case.label, "sizes": dict(case.sizes), "switches": dict(case.switches),
        "dtype": dtype, "threads": 1, "solver": "direct", "seconds": 1e-3, "gflops": 100.0, "gbs": 1.0, "bytes": 1e6,
        "flops": 1e9, "roof": {"bound": "fma", "rate": 250.0, "percent": percent},
        "rivals": {name.replace("_", " "): {"seconds": 1e-3, "speedup": value} for name, value in speedups.items()},
    }  # fmt: skip


def test_targets_say_what_was_reached():
    three, one = "1x64x56x56x64x3x3", "1x64x56x56x256x1x1"
    pad = ("--padding", "1")
    depthwise = ("--groups", "32", *pad)
    records = [
        record(three, more=pad, torch=1.8, torch_prepacked=1.2, onnxruntime=1.3),
        record(one, suite="vgg16", torch=2.45, torch_nhwc=0.9),
        record(three, suite="deepbench", more=pad, torch=0.01),  # not a suite that judges
        record(one, more=("--layout", "NHWC"), torch=0.01),
        record("1x32x112x112x32x3x3", suite="mobilenet", more=depthwise, percent=70, torch=3.5, onnxruntime=0.5),
        record(one, more=("--direction", "data"), torch=1.6, torch_nhwc=1.2),
        record(one, dtype="int8", numbaprims_f32=2.0),
        {**record(one, dtype="bf16", numbaprims_f32=1.1), "cold": 0.004, "regret": {"percent": 12.0}},
        {**record(three, more=pad), "error": "wrong result", "rivals": {}},
    ]
    records[4]["roof"]["percents"] = {"copy": 60.0, "fma": 70.0}
    rows = {row["name"]: (row["value"], row["verdict"]) for row in targets.summarise(records)}
    assert rows["f32, ResNet-50 and VGG-16, over torch NCHW"] == (pytest.approx(2.1), "aim")
    assert rows["f32, ResNet-50 and VGG-16, over the best rival"] == (pytest.approx(1.08**0.5), "floor")
    assert rows["f32, 3x3 stride 1, C, K >= 64, over the best"] == (pytest.approx(1.2), "MISSED by 14 %")
    assert rows["f32, 3x3 stride 1, C, K >= 64, worst"] == (pytest.approx(1.2), "floor")
    assert rows["f32, 1x1, over the best rival"] == (pytest.approx(0.9), "MISSED by 10 %")
    assert rows["f32, depthwise 3x3, 5x5, over torch NCHW"] == (pytest.approx(3.5), "aim")
    assert rows["f32, depthwise 3x3, 5x5, of the best copy"] == (pytest.approx(60), "below the aim")
    assert rows["the same, of the copy or the FMA peak"] == (pytest.approx(70), "below the aim")
    assert rows["f32, data gradient, over torch"] == (pytest.approx(1.2), "floor")
    assert rows["int8, over our own f32"] == (pytest.approx(2), "floor")
    assert rows["bf16, over our own f32"] == (pytest.approx(1.1), "MISSED by 8 %")
    assert rows["first call of a shape, kernels loaded, worst"] == (pytest.approx(4), "aim")
    assert rows["default choice, slower than the best solver"] == (pytest.approx(12), "MISSED by 20 %")
    assert rows["default choice, slower than the best, worst"] == (pytest.approx(12), "floor")
    assert "f32, weight gradient, over torch" not in rows and "f32, first layers, over the best rival" not in rows
    printed = "\n".join(table.targets(targets.summarise(records)))
    assert "80 %" in printed and "None" not in printed


# Results ----------------------------------------------------------------------------------------------


def test_what_was_measured_before_an_interruption_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "conv.json"
    words = ["--quick", "--threads", "1", "--time-limit", "0.1", "--json", str(path)]
    given = options(*words, "--shapes", "1x8x8x8x8x1x1,1x8x8x8x16x1x1")
    document = {"machine": {"l3": 1, "slug": "here"}, "schema": results.SCHEMA, "commit": "abc", "date": "today"}
    summary = {"fma_f32": 1.0, "fma_f64": 1.0, "fma_bf16": 1.0, "fma_int8": 1.0, "read": 1.0, "copy": 1.0,
               "copy_form": "", "update": 1.0, "levels": []}  # fmt: skip
    monkeypatch.setattr(session.Roofline, "summary", lambda self: summary)
    measured = session.run_case

    def second_is_interrupted(case, *args, **words):
        if case["k"] == 16:
            raise KeyboardInterrupt
        return measured(case, *args, **words)

    monkeypatch.setattr(session, "run_case", second_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run(given, document)
    kept = results.read(path)
    assert [entry["label"] for entry in kept["records"]] == ["1x8x8x8x8x1x1"]

    monkeypatch.setattr(session, "run_case", measured)
    given = options(*words, "--append", "--shapes", "1x8x8x8x16x1x1")
    session.run(given, {**document, "commit": "def"})
    kept = results.read(path)["records"]
    assert [(entry["label"], entry.get("commit")) for entry in kept] == [
        ("1x8x8x8x8x1x1", "abc"), ("1x8x8x8x16x1x1", None),
    ]  # fmt: skip


def test_what_the_docs_can_show(tmp_path):
    three = {**record("1x64x56x56x64x3x3", more=("--padding", "1"), torch=1.5), "threads": 1}
    three["regret"] = {"percent": 25.4, "default": "direct", "best": "winograd", "seconds": {"direct": 5e-3}}
    machine = {"slug": "here", "cpu": "a", "llvm": "b", "isa": "c"}
    run = {"schema": results.SCHEMA, "records": [three], "targets": targets.summarise([three]), "machine": machine}
    results.save(tmp_path / "here" / "conv.json", run)
    entry = {"panel": "a", "label": "1-1-4-6-6-8-0-0", "seconds": {"im2col_gemm": 2e-3, "x": 1e-3}, "best": "x",
             "baseline": "im2col_gemm", "speedup": 2.0}  # fmt: skip
    drawn = {"schema": results.SCHEMA, "machine": machine, "entries": [entry], "batch": 1, "threads": 1}
    results.save(tmp_path / "here" / "figures" / "miopen-figure6.json", drawn)
    machines = report.load_results(tmp_path)
    assert "resnet50 batch 1 forward, f32, 1 thread, 1 cases" in report.tables("conv means", machines)
    assert "| conv: f32, ResNet-50 and VGG-16, over torch NCHW | 1 | 1 | 1.5 x |" in report.tables(
        "conv targets", machines
    )
    assert "| f32 | direct | winograd | 25 | direct 5 ms |" in report.tables("conv choice", machines)
    assert "| direct | 1 | 1 ms | 100.0 | 1.0 | 50 | 1.50 |" in report.tables("conv resnet50", machines)
    assert "1-1-4-6-6-8-0-0" in report.tables("figure miopen-figure6", machines)
    assert report.tables("gemm means", machines).startswith("No results")
    assert "conv:" in report.tables("targets", machines)
    with pytest.raises(ValueError, match="figure nonsense"):
        report.tables("figure nonsense", machines)


# numbaprims reproduce ---------------------------------------------------------------------------------


def test_the_layers_of_figure_6():
    ones, others = (miopen_figure6.layers(which, 0) for which in (True, False))
    assert len(ones) > 50 and len(others) > 40
    assert {(layer.r, layer.s) for layer in ones} == {(1, 1)}
    assert {(layer.r, layer.s) for layer in others} == {(3, 3), (5, 5), (1, 7), (7, 1), (1, 3), (3, 1)}
    assert "3-3-64-35-35-96-1-1" in {miopen_figure6.label(layer) for layer in others}
    some = miopen_figure6.layers(False, 5, batch=2)
    assert len(some) == 5 and some[0].n == 2
    assert [layer.flops for layer in some] == sorted(layer.flops for layer in some)
    assert miopen_figure6.label(some[-1]) == miopen_figure6.label(others[-1])


@pytest.fixture
def tiny_figure(monkeypatch):
    """Figure 6 of two tiny layers, with the solver that is there in any case as the baseline."""
    small = {
        True: conv_suites.Layer(1, 4, 6, 6, 8, 1, 1),
        False: conv_suites.Layer(1, 4, 6, 6, 8, 3, 3, padding=(1, 1)),
    }
    monkeypatch.setattr(miopen_figure6, "BASELINE", "naive")
    monkeypatch.setattr(conv_operands.Ours, "candidates", lambda self: ["naive"])
    monkeypatch.setattr(miopen_figure6, "layers", lambda ones, count, batch: [small[ones]])


def reproduce(*words):
    parser = argparse.ArgumentParser()
    cli_reproduce.add_arguments(parser)
    return cli_reproduce.run(parser.parse_args(["miopen-figure6", "--removed=", *words]))


def test_a_figure_is_measured_kept_and_drawn_again(tiny_figure, tmp_path, capsys):
    kept = tmp_path / "figure.json"
    assert reproduce("--quick", "--time-limit", "0.05", "--json", str(kept)) == 0
    document = results.read(kept)
    assert [entry["panel"] for entry in document["entries"]] == list("abcdef")
    assert {entry["label"] for entry in document["entries"]} == {"1-1-4-6-6-8-0-0", "3-3-4-6-6-8-1-1"}
    for entry in document["entries"]:
        assert entry["speedup"] >= 1 and entry["seconds"][entry["best"]] == min(entry["seconds"].values())
    printed = capsys.readouterr().out
    assert "(d) non 1x1 filter sizes (backward data)" in printed and "Winograd speeds up many 3x3" in printed
    pytest.importorskip("matplotlib")
    picture = tmp_path / "figure.png"
    assert reproduce("--redraw", str(kept), "--plot", str(picture)) == 0
    assert picture.stat().st_size > 20_000
    assert "geometric mean" in capsys.readouterr().out


def test_a_figure_names_what_it_could_not_measure(tiny_figure, monkeypatch, capsys):
    monkeypatch.setattr(miopen_figure6, "BASELINE", "nobody")
    assert reproduce("--quick") == 1
    assert capsys.readouterr().out.count("NOT MEASURED: no solver nobody") == 12  # as it runs, and in the table


def test_a_wrong_solver_is_left_out_of_a_figure(tiny_figure, monkeypatch, capsys):
    monkeypatch.setattr(conv_operands.Operands, "check", lambda self: lambda got: "off by 1")
    assert reproduce("--quick") == 1


def test_another_file_is_not_drawn(tmp_path, capsys):
    path = tmp_path / "other.json"
    results.save(path, {"schema": results.SCHEMA, "figure": "another", "entries": []})
    assert reproduce("--redraw", str(path)) == 2
    assert "another" in capsys.readouterr().err


def test_figures_are_found_by_their_files():
    assert figures.names()["miopen-figure6"].startswith("Figure 6 of the MIOpen paper")
    with pytest.raises(ValueError, match="'nonsense'.*miopen-figure6"):
        figures.load("nonsense")
    for name in figures.names():
        module = figures.load(name)
        assert callable(module.measure) and callable(module.lines) and callable(module.draw)


def test_the_command_line_is_that_of_the_program():
    """Through `numbaprims bench` too, whose arguments hold the subcommand's name."""
    import argparse

    from numbaprims.bench import command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["conv", "--suite", "first", "--batch", "1,4"])
    args.command = "bench"
    assert command.command_line(args) == "numbaprims bench conv --shapes first --batch 1,4"
