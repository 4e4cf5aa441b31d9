"""The script of tools/ is one to a shell, says how it is used, and refuses what it does not know."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "test_on_arm64.sh"


def sh(*words: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(["sh", *words], capture_output=True, text=True)


def test_on_arm64_says_how_it_is_used():
    assert sh("-n", SCRIPT).stderr == ""
    told = sh(SCRIPT, "--help")
    assert told.returncode == 0
    assert all(f"  {option} " in told.stdout for option in ("--root", "--suite", "--all", "--"))
    for wrong, word in ((["--no-such"], "--no-such"), (["--root"], "a value"), (["--all", "--", "-q"], "no arguments")):
        refused = sh(SCRIPT, *wrong)
        assert refused.returncode == 2 and word in refused.stderr
