"""Draw calls of every primitive and make each in every way, operands and results between pages that nobody may touch.

    python tests/fuzz.py --seconds 60 --seed 1 [--stem conv] [--device emulated]
    python tests/fuzz.py --case conv:1:815 [--way winograd_4x4]

Sizes are 0, 1, 2, 3, those around a vector, and seldom others; numbers are small integers, whose sums are exact. Every
solver that does not refuse makes the call, as do other configs of it, the solver that is chosen, plans and `@njit`.
Operands may not be written to, results are full of NaN before, bytes between their elements stay as they are, and what
is read or written past an array ends the process that does it, which another one notices and goes on after.

Exit 1, with one line for each finding that makes it again, if there is any; 2 without the package.
"""

import argparse
import contextlib
import faulthandler
import importlib.util
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if importlib.util.find_spec("numbaprims") is None:
    print("fuzz: this Python has no numbaprims: pip install '.[test]'", file=sys.stderr)
    sys.exit(2)
sys.path.insert(0, str(Path(__file__).parent))
import conftest  # the directory of compiled kernels, the count of threads

NOTE = 256
"""Bytes in which a child writes what it is at."""
STUCK = 300.0
"""Seconds at one way, which may compile kernels, after which a child counts as hung."""
MOST = 20
"""Findings of a stem after which its turn ends."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for all stems together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stem", action="append", help="one stem; may be given several times")
    parser.add_argument("--device", choices=("cpu", "emulated"), default="cpu")
    parser.add_argument("--case", help="STEM:SEED:INDEX, one case again")
    parser.add_argument("--way", help="with --case: in this way only")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)  # first index, time of the end, file of the note
    return parser.parse_args()


def child(options: argparse.Namespace) -> None:
    """Draw and check cases until the time is up; a line of JSON for each finding, one at the end."""
    import frames
    from fuzzing import run

    faulthandler.enable()
    frames.watch()
    run.guard_workspace()
    index, end, path = int(options.child[0]), float(options.child[1]), options.child[2]
    stem = options.stem[0]
    with open(path, "r+b") as file, conftest.on_device(options.device):
        shared = mmap.mmap(file.fileno(), NOTE)

        def note(way: str) -> None:
            shared[:] = json.dumps([index, way]).encode()[:NOTE].ljust(NOTE)

        made = cases = 0
        while not cases or time.time() < end and not options.case:  # one in any case, however long imports take
            note("draw")
            call, source = run.draw(stem, options.seed, index)

            def count(way: str) -> None:
                nonlocal made
                made += way != "explain"
                note(way)

            for way, fault in run.check(call, source, count, options.way):
                say({"index": index, "way": way, "fault": fault, "call": str(call)})
            cases += 1
            index += 1
        say({"cases": cases, "made": made})


def say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


def watch(stem: str, options: argparse.Namespace, first: int, end: float) -> tuple[int, int, int]:
    """Run children of a stem until the time is up; (cases, calls, findings)."""
    cases = made = findings = 0
    with tempfile.NamedTemporaryFile() as note:
        note.write(b" " * NOTE)
        note.flush()
        begun = False
        while (not begun or time.time() < end) and findings < MOST:
            begun = True
            command = [
                sys.executable,
                __file__,
                "--stem",
                stem,
                "--seed",
                str(options.seed),
                "--device",
                options.device,
            ]
            command += ["--child", str(first), str(end), note.name]
            if options.case:
                command += ["--case", options.case] + (["--way", options.way] if options.way else [])
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            output, errors, hung = wait(process, Path(note.name))
            done = False
            for line in map(json.loads, output.splitlines()):
                if "index" in line:
                    findings += 1
                    report(options, stem, line["index"], line["way"], f"{line['fault']}\n    {line['call']}")
                else:
                    cases, made, done = cases + line["cases"], made + line["made"], True
            if done:
                break
            text = Path(note.name).read_bytes().decode().strip()
            if not text:
                sys.exit(f"a process of {stem} did not start:\n{errors}")
            index, way = json.loads(text)
            findings += 1
            what = "hung" if hung else f"the process ended with {process.returncode}"
            report(options, stem, index, way, f"{what}: {describe(stem, options.seed, index)}\n{errors[-2000:]}")
            cases, first = cases + index + 1 - first, index + 1
            if options.case:
                break
    return cases, made, findings


def wait(process: subprocess.Popen, note: Path) -> tuple[str, str, bool]:
    """A child's output, its errors, and whether it had to be ended."""
    last, since = b"", time.time()
    while True:
        try:
            return *process.communicate(timeout=5), False
        except subprocess.TimeoutExpired:
            now = note.read_bytes()
            if now != last:
                last, since = now, time.time()
            elif time.time() - since > STUCK:
                process.kill()
                return *process.communicate(), True


def describe(stem: str, seed: int, index: int) -> str:
    from fuzzing import run

    try:
        return str(run.draw(stem, seed, index)[0])
    except Exception as error:
        return f"it cannot be drawn: {error!r}"


def report(options: argparse.Namespace, stem: str, index: int, way: str, what: str) -> None:
    device = "" if options.device == "cpu" else f" --device {options.device}"
    print(f"python tests/fuzz.py --case {stem}:{options.seed}:{index} --way '{way}'{device}  # {what}", flush=True)


def main() -> int:
    options = arguments()
    if options.child:
        child(options)
        return 0
    # children share the kernels that they compile
    os.environ["NUMBAPRIMS_TEST_CACHE_DIR"] = os.environ["NUMBAPRIMS_CACHE_DIR"]
    first = 0
    if options.case:
        stem, seed, index = options.case.split(":")
        options.stem, options.seed, first, options.seconds = [stem], int(seed), int(index), 3600.0
    from fuzzing import run

    stems = options.stem or list(run.DRAWS)
    for name in stems:
        if name not in run.DRAWS:
            sys.exit(f"--stem {name}: there are {', '.join(run.DRAWS)}")
    begin, wrong = time.time(), 0
    for at, stem in enumerate(stems):
        end = begin + options.seconds * (at + 1) / len(stems)
        cases, made, findings = watch(stem, options, first, end)
        wrong += findings
        print(f"{stem}: {cases} cases, {made} calls, {findings} findings", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
