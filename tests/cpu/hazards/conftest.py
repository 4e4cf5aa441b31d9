"""Children: hazards that end a process, or need several, run in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from numbaprims.cpu import target

HERE = Path(__file__).resolve().parent
#: Where the package that is tested lies: an installed one has the bytecode that children may not write.
ROOT = Path(target.__file__).parents[2]
SECONDS = 100


def environment(cache: Path | str | None, **variables: str) -> dict[str, str]:
    """The environment of a child: ours, without what would choose threads or caches for it."""
    prefixes = ("NUMBAPRIMS_", "NUMBA_", "OMP_", "TOY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"  # an edit within the same second must not meet an old .pyc
    if cache is not None:
        kept["NUMBAPRIMS_CACHE_DIR"] = str(cache)
    return {**kept, **variables}


class Child:
    """A running script; `result()` waits for it and gives the JSON of its last line."""

    def __init__(self, arguments: list[str], env: dict[str, str], folder: Path) -> None:
        env = {**env, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env=env,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def result(self) -> Any:
        try:
            out, err = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"hangs:\n{self.process.communicate()[1]}") from None
        assert self.process.returncode == 0, f"ended with {self.process.returncode}:\n{out}\n{err}"
        return json.loads(out.splitlines()[-1])


class Toy:
    """A copy of the toy package, its cache, and children that run its scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        shutil.copytree(HERE / "toy", folder / "toy", ignore=shutil.ignore_patterns("__pycache__"))

    @property
    def files(self) -> list[Path]:
        """The kernels on disk."""
        return sorted((self.cache / "kernels").glob("*.npk"))

    def start(self, action: str, *arguments: Any, cache: Any = "own", **variables: str) -> Child:
        env = environment(self.cache if cache == "own" else cache, **variables)
        return Child(["-m", "toy.kernels", action, *map(json.dumps, arguments)], env, self.folder)

    def run(self, action: str, *arguments: Any, **variables: Any) -> Any:
        return self.start(action, *arguments, **variables).result()

    def start_script(self, code: str, *, cache: Any = "own", **variables: str) -> Child:
        env = environment(self.cache if cache == "own" else cache, **variables)
        return Child(["-c", textwrap.dedent(code)], env, self.folder)

    def script(self, code: str, **variables: Any) -> Any:
        return self.start_script(code, **variables).result()

    def edit(self, module: str, old: str, new: str) -> None:
        path = self.folder / "toy" / f"{module}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture
def run_script():
    """Run code beside the toy package itself, with the session's cache; gives the JSON of its last line."""

    def run(code: str, **variables: str) -> Any:
        env = environment(os.environ["NUMBAPRIMS_CACHE_DIR"], **variables)
        return Child(["-c", textwrap.dedent(code)], env, HERE).result()

    return run
