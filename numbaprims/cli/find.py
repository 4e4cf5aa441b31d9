"""``numbaprims find <stem>``: every solver of a problem, timed, the fastest first."""

import argparse
import sys

from numbaprims.cli import problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stems = parser.add_subparsers(dest="stem", required=True, metavar="|".join(problems.STEMS))
    for stem in problems.STEMS:
        one = stems.add_parser(stem, help=f"a problem of {stem}")
        problems.add_arguments(one)
        one.add_argument("--mode", choices=("normal", "fast", "hybrid", "trust_verify"), default="normal")
        one.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where kernels run")
        one.add_argument("--check", action="store_true", help="compare each result with the float64 reference")
        one.add_argument("--workspace", metavar="BYTES", help="scratch memory that a solver may need (64M)")
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
                print(f"{problem.bench_command()}\n{found.table()}\n", flush=True)
    except (ValueError, TypeError, RuntimeError) as error:
        print(f"numbaprims find: {error}", file=sys.stderr)
        return 2
    return 0
