"""``numbaprims explain <stem>``: what a call would do: every solver, its estimate or why it refuses, and the choice."""

import argparse
import sys

from numbaprims.cli import problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for one in problems.add_stems(parser):
        one.add_argument("--measure", action="store_true", help="also time each solver that can")
        one.add_argument("--phases", action="store_true", help="also list the kernels of the one that is chosen")
        one.add_argument("--wide", action="store_true", help="a line for each solver, as wide as it comes")


def run(arguments: argparse.Namespace) -> int:
    import numbaprims

    try:
        with numbaprims.config(solver_workspace=arguments.workspace):
            for problem in problems.problems(arguments.stem, arguments):
                asked = {"measure": arguments.measure, "phases": arguments.phases, "device": arguments.device}
                told = numbaprims.explain(problem, **asked)
                print(f"{told.table(wide=arguments.wide)}\n", flush=True)
    except (ValueError, TypeError, RuntimeError) as error:
        print(f"numbaprims explain: {error}", file=sys.stderr)
        return 2
    return 0
