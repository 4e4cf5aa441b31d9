"""The command ``numbaprims``.

A command is a module with ``add_arguments(parser)`` and ``run(arguments) -> int``, the exit status. Only the
module of the command that is called gets imported, so that ``numbaprims --help`` stays instant.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numbaprims

COMMANDS = {
    "info": ("numbaprims.cli.info", "versions, CPU, threads, GPU and kernel cache of this machine"),
    "demo": ("numbaprims.nn.demo", "train a digit classifier or a writer on this library, beside NumPy or torch"),
    "bench": ("numbaprims.bench.command", "time a primitive against the roofline and the rivals installed"),
    "reproduce": ("numbaprims.cli.reproduce", "measure a table or figure of a paper again"),
    "explain": ("numbaprims.cli.explain", "show every solver of a problem: its estimate or why not, and the choice"),
    "find": ("numbaprims.cli.find", "time every solver of a problem, and remember the fastest"),
    "tune": ("numbaprims.cli.tune", "find the best config of every solver for a suite of shapes"),
    "calibrate": ("numbaprims.cli.calibrate", "measure what estimates assume of this CPU, and remember it"),
    "warmup": ("numbaprims.cli.warmup", "compile kernels into the cache ahead of their first use"),
    "cache": ("numbaprims.cli.cache", "show or clear the cache of compiled kernels"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (the process's own arguments when None) names; return its exit status."""
    return told(_run, argv)


def told(run: Callable[..., int], *given: Any) -> int:
    """``run(*given)``, the exit status; what is not a mistake of the program ends in words."""
    try:
        try:
            return run(*given)
        finally:
            _flush()  # or Python does at its end, and nobody is told in words
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # its reader has seen enough, as `head` has
        _drop_output()
        return 141
    except (OSError, MemoryError) as error:
        print(f"numbaprims: {error or type(error).__name__}", file=sys.stderr)
        _drop_output()
        return 1


def _flush() -> None:
    if sys.stdout is not None:  # as it is in a process that was begun without one
        sys.stdout.flush()


def _drop_output() -> None:
    """Let Python write nowhere what it could not write."""
    try:
        _flush()
    except OSError:
        with contextlib.suppress(OSError):  # of a stream without a number
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="numbaprims", description="Deep-learning primitives in pure Python.")
    parser.add_argument("--version", action="version", version=f"numbaprims {numbaprims.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if words[:1] == [name]:
            import_module(module).add_arguments(command)
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 0
    return import_module(COMMANDS[arguments.command][0]).run(arguments)
