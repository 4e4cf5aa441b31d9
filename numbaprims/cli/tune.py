"""``numbaprims tune``: the best config of every solver for the shapes of a suite, kept in the tuning database."""

import argparse
import functools
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from numbaprims.cli import problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("stem", nargs="?", choices=problems.STEMS, metavar="stem", help=", ".join(problems.STEMS))
    add("--suite", metavar="NAME", help="a suite of shapes: resnet50, gemm:square; alone or with the options of a stem")
    problems.add_arguments(parser)
    add("--budget", type=problems.seconds, metavar="SECONDS", help="end after so long, and keep what was found")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where kernels run")
    add("--jobs", type=problems.positive, default=1, metavar="N", help="compile in N processes; timings take turns")
    add("--sampler", choices=("order", "optuna"), default="order", help="all configs, or a quarter that optuna draws")
    add("--again", action="store_true", help="also time what an earlier run has timed")
    add("--export", metavar="FILE", help="write the database as JSON lines, after tuning if there is anything to tune")
    add("--check", action="store_true", help="export only what computes the right thing here: for files that ship")
    add("--import", dest="import_file", metavar="FILE", help="first add the records of such a file to the database")


def run(arguments: argparse.Namespace) -> int:
    from numbaprims.dispatch import ship
    from numbaprims.tuning import database

    try:
        if arguments.import_file:
            count = database.import_file(arguments.import_file)
            print(f"{count} records of {arguments.import_file} added to {database.user_path()}")
        wanted = _problems(arguments)
        if not wanted and not arguments.import_file and not arguments.export:
            raise ValueError("name a stem, a --suite, or a file to --import or --export")
        if wanted:
            _tune(wanted, arguments)
        if arguments.export:
            only = functools.partial(ship.checked, device=arguments.device) if arguments.check else iter
            print(f"{database.export_file(arguments.export, only=only)} records written to {arguments.export}")
    except BrokenPipeError:
        raise
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        print(f"numbaprims tune: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; what was found is kept, and the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _problems(arguments: argparse.Namespace) -> list[Any]:
    if not arguments.suite:
        return problems.problems(arguments.stem, arguments) if arguments.stem else []
    found = []
    for stem, suite in problems.suites_of(arguments.suite, [arguments.stem] if arguments.stem else problems.STEMS):
        arguments.shapes = suite
        found += problems.problems(stem, arguments)
    return found


def _tune(wanted: list[Any], arguments: argparse.Namespace) -> None:
    import numbaprims

    print(f"{len(wanted)} problem{'s' * (len(wanted) != 1)}", file=sys.stderr)
    pool: Executor | None = None
    if arguments.jobs > 1:
        import multiprocessing

        # spawned: a child forked after an OpenMP region dies at its own first one
        pool = ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        done = numbaprims.tune(
            wanted,
            executor=pool,
            budget=arguments.budget,
            device=arguments.device,
            sampler=arguments.sampler,
            again=arguments.again,
        )
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
    print(done)
