"""`numbaprims bench`: measure a primitive against the roofline and the rivals that are installed."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

from numbaprims.bench import rivals
from numbaprims.stems import STEMS

SUBJECTS = (*STEMS, "call", "start")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def positive(text: str) -> int:
    """A size of the command line."""
    if not text.isdecimal() or not 1 <= int(text) <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are whole numbers from 1, below 2^63")
    return int(text)


def threads(text: str) -> int:
    """A count of threads: libraries end the process where they cannot start as many."""
    most = 64 * (os.cpu_count() or 1)
    if positive(text) > most:
        raise argparse.ArgumentTypeError(f"{text!r} given, allowed are up to {most} threads, 64 for each CPU")
    return int(text)


def _counts(text: str, count: Callable[[str], int] = positive) -> list[int]:
    if counts := [count(word) for word in _words(text)]:
        return counts
    raise argparse.ArgumentTypeError(f"{text!r} given, allowed are whole numbers from 1, as in 1,2")


def _thread_counts(text: str) -> list[int]:
    return _counts(text, threads)


def seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} given, allowed are seconds above 0")


def _dtypes(text: str) -> list[str]:
    allowed = ("f32", "f64", "bf16", "f16", "int8")
    found = ["int8" if word == "i8" else word for word in _words(text)]
    for word in found:
        if word not in allowed:
            raise argparse.ArgumentTypeError(f"{word!r} given, allowed are {', '.join(allowed)}")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add(
        "subject",
        choices=SUBJECTS,
        help="a primitive; `call`: overhead of a call; `start`: first call of a process",
    )
    add("--threads", type=_thread_counts, metavar="1,2", help="thread counts (default: 1 and all)")
    add("--dtype", type=_dtypes, default=["f32"], metavar="f32,f64,bf16,f16,int8", help="default f32")
    add(
        "--shapes",
        "--suite",
        type=_words,
        metavar="SUITE|MxNxK,...",
        help="suites or shapes (gemm MxNxK; gemv, ger, softmax, norm MxN; conv NxCxHxWxKxRxS, batch_norm, norm "
        "NxCxHxW, pooling NxCxHxWxRxS, stack NxCxHxWxBLOCKS, lrn NxCxHxWxS, resize NxCxDxHxWxZxRxS, rnn TxNxIxH, "
        "gather NxMxJxI or NxCxHxWxP); `all` for every suite",
    )
    add("--quick", action="store_true", help="a few small shapes and short measurements, to see that it works")
    add(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="seconds for each case, three rounds at least, one of a round that alone takes longer (default 10)",
    )
    add("--rivals", type=_words, metavar="NAME,...", help="only these beside ours, as the columns name them")
    add("--json", metavar="FILE", help="write records and facts about the machine")
    add("--save", metavar="DIR", help="write DIR/<machine>/<subject>.json, as in benchmarks/results")
    add("--append", action="store_true", help="keep what those files hold of other cases")
    add("--plot", metavar="FILE", help="draw roofline and speed-ups (.png, .svg, .pdf); needs matplotlib")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where kernels run: cpu, or the first GPU")
    add(
        "--cpu",
        choices=tuple(rivals.RESTRICTIONS),
        help="hold all libraries to the instructions of a lesser CPU: x86-64-v3 is AVX2",
    )
    case = parser.add_argument_group("one case (as the lines of NUMBAPRIMS_VERBOSE=1 name it)")
    case.add_argument("--trans-a", "--trans", action="store_true", help="the first operand is stored transposed")
    case.add_argument("--trans-b", action="store_true", help="gemm: the second operand is stored transposed")
    case.add_argument("--bias", action="store_true", help="gemm, conv: add a bias to each column, or channel")
    case.add_argument("--activation", metavar="KIND", help="gemm, conv: fuse an activation")
    case.add_argument(
        "--batch",
        type=_counts,
        metavar="1,16",
        help="gemm: products (default 1); conv, batch_norm, pooling, stack: images in a suite (default 1,16)",
    )
    case.add_argument(
        "--kind",
        type=_words,
        metavar="KIND,...",
        help="activation, softmax, ...: these kinds only; stack: the operations of a block too, as in relu/0+scale/1",
    )
    case.add_argument(
        "--backward",
        action="store_true",
        help="activation, softmax, pooling, stack: the gradient; rnn, attention: training; ctc: it too",
    )
    case.add_argument(
        "--across", action="store_true", help="softmax: the M rows of N lie side by side, N x M in memory"
    )
    case.add_argument(
        "--most", type=int, default=0, metavar="STEPS", help="stack: of a sequence, at most (default any)"
    )
    case.add_argument("--limit", type=int, default=0, metavar="BYTES", help="stack: of a sequence; -1: unrestricted")
    case.add_argument("--layers", type=positive, metavar="N", help="rnn: default 1")
    case.add_argument("--directions", type=int, choices=(1, 2), help="rnn: default 1")
    case.add_argument("--lengths", action="store_true", help="rnn: sequences of 1 to T steps")
    case.add_argument(
        "--steps-at-most", type=positive, metavar="T", help="rnn: rows of a suite of so many; --n, --h too"
    )
    case.add_argument("--steps-at-least", type=positive, metavar="T", help="rnn: rows of a suite of so many")
    conv = parser.add_argument_group("conv, batch_norm, pooling, stack")
    conv.add_argument("--direction", type=_words, metavar="forward,data,weight,bias", help="default forward")
    conv.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW", help="of our arrays")
    conv.add_argument("--regret", action="store_true", help="time every solver: what does the default choice cost?")
    for name, meaning in (
        ("n", "images"), ("c", "input channels"), ("h", "rows"), ("w", "columns"), ("k", "filters"),
        ("r", "rows of a filter"), ("s", "columns of a filter"), ("d", "depth of a volume"), ("z", "depth of a filter"),
    ):  # fmt: skip
        conv.add_argument(f"--{name}", type=positive, metavar=name.upper(), help=f"one layer: {meaning}")
    for names, default in ((("--stride",), "1"), (("--padding", "--pad"), "0"), (("--dilation",), "1")):
        conv.add_argument(*names, default=default, metavar="2|2x1", help=f"one layer: default {default}")
    conv.add_argument("--ceil", action="store_true", help="pooling: a last window may reach out of the padding")
    conv.add_argument("--groups", type=positive, default=1, metavar="G", help="one layer: default 1")
    parser.add_argument("--removed", type=_words, default=None, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 when every case was measured, 1 when one could not be, 2 for wrong arguments."""
    if args.removed is None:
        status = rivals.run_again("numbaprims.bench", vars(args))
        if status is not None:
            return status
    rivals.keep_memory()
    # before our threads start: MKL's vector functions in torch then share torch's OpenMP, not the one that Numba loads;
    # with three teams on two cores its exp of 2^20 elements took 4 ms instead of 0.43 (Zen 4)
    rivals.load_rival("torch")
    try:
        return _run_here(args)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"numbaprims bench: {error}", file=sys.stderr)
        return 2


def _run_here(args: argparse.Namespace) -> int:
    from numbaprims.bench import results

    if args.device != "cpu":
        from numbaprims.bench import gpu as subject
    elif args.subject == "start":
        from numbaprims.bench import startup as subject  # type: ignore[no-redef]
    elif args.subject == "call":
        from numbaprims.bench import overhead as subject  # type: ignore[no-redef]
    else:
        from numbaprims.bench import session as subject  # type: ignore[no-redef]
    if args.rivals and args.subject in STEMS:
        from numbaprims.bench.table import rivals_of

        known = rivals_of(args.subject, args.device != "cpu")
        if unknown := [name for name in args.rivals if name not in known]:
            raise ValueError(f"--rivals {','.join(unknown)}: {args.subject} is measured beside {', '.join(known)}")
    if args.device != "cpu":
        subject.open_device(args.device)  # or the words why not, before anything else
    document: dict[str, Any] = results.facts(command_line(args), args.removed or [])
    results.check_paths(results.files(args, document), args.plot, append=args.append)
    _print_facts(document)
    failed = subject.run(args, document)
    from numbaprims.bench import table

    document["targets"] = results.keep(args, document)
    lines = table.targets(document["targets"])
    if lines:
        print("\n" + "\n".join(lines))
    for path in results.files(args, document):
        print(f"records written to {path}")
    if args.plot:
        from numbaprims.bench import plot

        plot.draw(document, args.plot)
        print(f"plot written to {args.plot}")
    return 1 if failed else 0


def command_line(args: argparse.Namespace) -> str:
    """The command that was given, without where its output goes."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    defaults = vars(parser.parse_args([args.subject]))
    words = ["numbaprims", "bench", args.subject]
    for name, value in vars(args).items():
        # by `numbaprims bench` there is the subcommand's own name beside them
        if name not in defaults or name in ("json", "save", "append", "plot", "removed") or value == defaults[name]:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, list) else str(value))
    return shlex.join(words)


def _print_facts(document: dict[str, Any]) -> None:
    machine, versions = document["machine"], document["versions"]
    caches = "/".join(f"{machine[level] / 2**20:.3g}" for level in ("l1d", "l2", "l3"))
    print(f"{machine['cpu']} ({machine['llvm']}, {machine['isa']}), {machine['cpus']} CPUs, caches {caches} MiB")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    if machine["load"] is not None and machine["load"] > 0.3 * machine["cpus"]:
        print(f"This machine is busy (load {machine['load']:.1f}): times of several threads mean little now.")
    if document["removed_from_environment"]:
        print("removed from the environment: " + ", ".join(document["removed_from_environment"]))
    for name, kernels in document["kernels"].items():
        print(f"{name:8} {kernels}")
