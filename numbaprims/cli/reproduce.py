"""``numbaprims reproduce``: a table or figure of a paper, measured again on this machine."""

import argparse
import json
import sys
from pathlib import Path

from numbaprims.cli import told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from numbaprims.bench import figures
    from numbaprims.bench.command import positive, seconds, threads

    known = figures.names()
    add = parser.add_argument
    summary = "; ".join(f"{name}: {what}" for name, what in known.items())
    add("figure", choices=tuple(known), metavar="NAME", help=summary.replace("%", "%%"))
    add("--quick", action="store_true", help="a small part, to see that it works")
    add("--full", action="store_true", help="everything, where a part is measured by default")
    add("--threads", type=threads, default=1, metavar="N", help="threads of every library (default 1)")
    add("--batch", type=positive, default=1, metavar="N", help="images of a layer (default 1)")
    add("--time-limit", type=seconds, metavar="S", help="seconds for each measurement (default 10)")
    add("--json", metavar="FILE", help="write what was measured, step by step")
    add("--save", metavar="DIR", help="write DIR/<machine>/figures/NAME.json, as in benchmarks/results")
    add("--plot", metavar="FILE", help="draw it (.png, .svg, .pdf); needs matplotlib")
    add("--redraw", metavar="FILE", help="measure nothing: print and draw what --json or --save wrote")
    parser.add_argument("--removed", default=None, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    from numbaprims.bench import rivals

    if not arguments.redraw and arguments.removed is None:
        status = rivals.run_again("numbaprims.cli.reproduce", vars(arguments))
        if status is not None:
            return status
    try:
        return _run(arguments)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"numbaprims reproduce: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from numbaprims.bench import figures, results, rivals

    figure = figures.load(arguments.figure)
    if arguments.redraw:
        document = results.read(arguments.redraw)
        if document.get("figure") != arguments.figure:
            raise ValueError(f"redraw: {arguments.redraw} holds {document.get('figure')!r}, not {arguments.figure}")
        with results.held(arguments.redraw):
            figure.lines(document)
    else:
        rivals.keep_memory()
        document = {**results.facts(_command(arguments), arguments.removed or []), "figure": arguments.figure}
        paths = [Path(arguments.json)] if arguments.json else []
        if arguments.save:
            paths.append(Path(arguments.save, document["machine"]["slug"], "figures", f"{arguments.figure}.json"))
        results.check_paths(paths, arguments.plot)
        for _ in figure.measure(arguments, document):
            for path in paths:
                results.save(path, document)
        print("".join(f"\nwritten to {path}" for path in paths))
    print("\n" + "\n".join(figure.lines(document)))
    if arguments.plot:
        figure.draw(document, arguments.plot)
        print(f"plot written to {arguments.plot}")
    return 1 if any("error" in entry for entry in document["entries"]) else 0


def _command(arguments: argparse.Namespace) -> str:
    words = ["numbaprims reproduce", arguments.figure]
    words += [f"--{name}" for name in ("quick", "full") if getattr(arguments, name)]
    return " ".join([*words, f"--threads {arguments.threads} --batch {arguments.batch}"])


if __name__ == "__main__":
    sys.exit(told(run, argparse.Namespace(**json.loads(sys.argv[1]))))
