"""``numbaprims find <stem>``: every solver of a problem, timed, the fastest first."""

import argparse
import sys

from numbaprims.cli import problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for one in problems.add_stems(parser):
        one.add_argument("--mode", choices=("normal", "fast", "hybrid", "trust_verify"), default="normal")
        one.add_argument("--check", action="store_true", help="compare each result with the float64 reference")
        one.add_argument("--no-store", action="store_true", help="leave the tuning database as it is")


def run(arguments: argparse.Namespace) -> int:
    import numbaprims

    try:
        with numbaprims.config(solver_workspace=arguments.workspace):
            for problem in problems.problems(arguments.stem, arguments):
                found = numbaprims.find(
                    problem,
                    mode=arguments.mode,
                    device=arguments.device,
                    check=arguments.check,
                    store=not arguments.no_store,
                )
                print(f"{found}\n", flush=True)
    except (ValueError, TypeError, RuntimeError) as error:
        print(f"numbaprims find: {error}", file=sys.stderr)
        return 2
    return 0
