"""Options that name problems, shared by ``numbaprims explain``, ``find`` and ``tune``; they are those of
``numbaprims bench``, and sizes may also be given one by one."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from numbaprims.stems import STEMS

_SIZES = {"gemm": ("m", "n", "k"), "gemv": ("m", "n"), "ger": ("m", "n"), "activation": ("n",), "softmax": ("m", "n"),
          "batch_norm": ("n", "c", "h", "w"), "norm": ("m", "n"), "pooling": ("n", "c", "h", "w", "r", "s"),
          "stack": ("n", "c", "h", "w", "blocks"), "lrn": ("n", "c", "h", "w", "s"),
          "resize": ("n", "c", "d", "h", "w", "z", "r", "s"),
          "rnn": ("t", "n", "i", "h"), "random": ("n",), "attention": ("n", "h", "g", "l", "s", "e"),
          "rope": ("n", "h", "l", "e"), "scan": ("m", "n"), "topk": ("m", "n", "k"), "ctc": ("t", "n", "c", "s"),
          "reduce": ("m", "n"), "tensor": ("m", "n"), "gather": ("n", "m", "j", "i"),
          "quantize": ("m", "n")}  # fmt: skip
_IMAGE = ("n", "c", "d", "h", "w", "k", "z", "r", "s")
_NAMES = ("m", "t", "i", "j", "g", "l", "e", *_IMAGE)


def positive(text: str) -> int:
    from numbaprims.bench import command

    return command.positive(text)


def seconds(text: str) -> float:
    from numbaprims.bench import command

    return command.seconds(text)


def add_stems(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser for a problem of each stem, with where and in how much memory it runs."""
    stems = parser.add_subparsers(dest="stem", required=True, metavar="|".join(STEMS))
    for stem in STEMS:
        one = stems.add_parser(stem, help=f"a problem of {stem}")
        add_arguments(one)
        one.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where kernels run")
        one.add_argument("--workspace", metavar="BYTES", help="scratch memory that a solver may need (64M)")
        yield one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name problems of a stem."""
    add = parser.add_argument
    add("--shapes", metavar="SUITE|MxNxK,...", help="suites or shapes, as of numbaprims bench")
    add("--dtype", default="f32", metavar="f32,f64,bf16,f16,int8", help="default f32")
    sizes = parser.add_argument_group(
        "one problem: gemm, topk --m --n --k; gemv, ger, softmax, norm, reduce, scan, tensor, quantize --m --n; "
        "activation, random --n; batch_norm --n --c --h --w; lrn that and --s; resize that, --d and the result's --z "
        "--r --s; pooling that and --r --s; stack that and --blocks; rnn --t --n --i --h; gather --n --m --j --i; "
        "rope --n --h --l --e; attention that, --g and --s of keys; ctc --t --n --c --s; conv the others"
    )
    for name in (*_NAMES, "blocks"):
        sizes.add_argument(f"--{name}", type=positive, metavar=name.upper())
    sizes.add_argument("--hw", type=positive, metavar="H", help="conv: a square image, for --h and --w")
    sizes.add_argument("--rs", type=positive, metavar="R", help="conv: a square filter, for --r and --s")
    form = parser.add_argument_group("its form")
    for names, default in ((("--stride",), "1"), (("--padding", "--pad"), "0"), (("--dilation",), "1")):
        form.add_argument(*names, default=default, metavar="2|2x1", help=f"conv, pooling: default {default}")
    form.add_argument("--groups", type=positive, default=1, metavar="G", help="conv: default 1")
    form.add_argument("--direction", metavar="forward,data,weight", help="conv: default forward")
    form.add_argument(
        "--layout", choices=("NCHW", "NHWC"), default="NCHW", help="conv, batch_norm, pooling, stack: of its arrays"
    )
    form.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help="gemm: so many products; conv, batch_norm, pooling, stack: so many images of a suite",
    )
    form.add_argument("--trans-a", "--trans", action="store_true", help="gemm, gemv: the matrix is stored transposed")
    form.add_argument("--trans-b", action="store_true", help="gemm: the second operand is stored transposed")
    form.add_argument("--bias", action="store_true", help="gemm, conv: add a bias")
    form.add_argument("--activation", metavar="KIND", help="gemm, conv: fuse an activation")
    form.add_argument("--kind", metavar="KIND,...", help="activation, softmax, ...: these kinds only")
    form.add_argument("--backward", action="store_true", help="activation, softmax, pooling, stack, rnn: the gradient")
    form.add_argument("--across", action="store_true", help="softmax: rows lie side by side")
    form.add_argument("--most", type=int, default=0, metavar="STEPS", help="stack: of a sequence, at most")
    form.add_argument("--limit", type=int, default=0, metavar="BYTES", help="stack: of a sequence; -1: unrestricted")
    form.add_argument("--layers", type=positive, metavar="N", help="rnn: default 1")
    form.add_argument("--directions", type=int, choices=(1, 2), help="rnn: default 1")
    form.add_argument("--lengths", action="store_true", help="rnn: sequences of 1 to T steps")
    form.add_argument("--ceil", action="store_true", help="pooling: a last window may reach out of the padding")


def bench_options(stem: str, given: argparse.Namespace) -> argparse.Namespace:
    """The options of ``numbaprims bench`` that say the same.

    Raises:
        ValueError: a size is missing.
    """
    from numbaprims.bench import command

    parser = argparse.ArgumentParser(prog=f"numbaprims bench {stem}", exit_on_error=False)
    command.add_arguments(parser)
    words = [stem, "--dtype", given.dtype]
    for name in ("shapes", "direction", "activation", "kind", "batch", "layers", "directions"):
        if getattr(given, name) is not None:
            words += [f"--{name}", str(getattr(given, name))]
    words += [
        f"--{name.replace('_', '-')}"
        for name in ("trans_a", "trans_b", "bias", "backward", "across", "ceil", "lengths")
        if vars(given)[name]
    ]
    for name in ("stride", "padding", "dilation", "groups", "layout", "most", "limit"):
        words += [f"--{name}", str(getattr(given, name))]
    sizes = _sizes(stem, given)
    if sizes and stem == "conv":
        for name, value in sizes.items():
            words += [f"--{name}", str(value)]
    elif sizes:
        words += ["--shapes", "x".join(str(value) for value in sizes.values())]
    try:
        return parser.parse_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from None


def names_shapes(given: argparse.Namespace) -> bool:
    """Whether suites, shapes or sizes are named; otherwise problems are those of the suites that `bench` takes."""
    return any(getattr(given, name) is not None for name in ("shapes", "hw", "rs", "blocks", *_NAMES))


def _sizes(stem: str, given: argparse.Namespace) -> dict[str, int]:
    """The sizes that were given one by one; {} for none."""
    values: dict[str, Any] = {name: getattr(given, name) for name in (*_NAMES, "blocks")}
    for both, names in (("hw", ("h", "w")), ("rs", ("r", "s"))):
        if getattr(given, both) is not None:
            for name in names:
                values[name] = getattr(given, both) if values[name] is None else values[name]
    found = {name: value for name, value in values.items() if value is not None}
    if not found:
        return {}
    wanted = _SIZES.get(stem, _IMAGE)
    if "c" in wanted:
        found.setdefault("n", 1)
    if stem == "conv" and not {"d", "z"} & set(found):
        wanted = tuple(name for name in _IMAGE if name not in ("d", "z"))
    missing = [f"--{name}" for name in wanted if name not in found]
    strange = [f"--{name}" for name in found if name not in wanted]
    if missing or strange:
        wrong = f"{' '.join(missing)} missing" if missing else f"{' '.join(strange)} means nothing"
        raise ValueError(f"{wrong}: a {stem} has the sizes {' '.join('--' + name for name in wanted)}")
    return {name: found[name] for name in wanted}


def suites_of(word: str, stems: Sequence[str]) -> list[tuple[str, str]]:
    """(stem, suite) of a suite's name, of these stems; ValueError where they have none."""
    from numbaprims.bench.problems import suites_named

    found = [(stem, suite) for stem, suite in suites_named(word) if stem in stems]
    if not found:
        raise ValueError(f"there is no suite {word!r} of {', '.join(stems)}")
    return found


def problems(stem: str, given: argparse.Namespace) -> list[Any]:
    """The problems that the options name."""
    from numbaprims.bench.problems import cases_of, problem_of_case

    return [problem_of_case(case) for case in cases_of(bench_options(stem, given))]
