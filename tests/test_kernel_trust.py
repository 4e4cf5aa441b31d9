"""The kernel cache loads machine code only from where nobody else could have put it."""

import os
import stat
from pathlib import Path

import pytest
from kernel_disk import look_again

from numbaprims import kernel_cache, kernel_files, settings
from numbaprims.tuning import turns

STRANGER = 54321


@pytest.fixture
def strangers(monkeypatch):
    """A function that gives files to another user: root can; anybody else takes all of his own for a stranger's."""

    def give(*paths):
        if os.geteuid() == 0:
            for path in paths:
                os.lchown(path, STRANGER, STRANGER)
        else:
            monkeypatch.setattr(kernel_files, "_user", lambda: STRANGER)

    if not hasattr(os, "geteuid"):
        pytest.skip("needs POSIX users")
    return give


@pytest.fixture
def elsewhere(disk, tmp_path, monkeypatch):
    """Where kernels go when a directory is not trusted: the platform's cache directory is below a private one."""
    home = tmp_path.parent / f"{tmp_path.name}-home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "numbaprims" / "kernels"


def opened(monkeypatch):
    """The kernel files that are opened from now on."""
    seen, real = [], open

    def spy(path, *args, **kwargs):
        if str(path).endswith(".npk"):
            seen.append(Path(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr("builtins.open", spy)
    return seen


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o775, 0o1777])
@pytest.mark.parametrize("of", ["its directory", "the directory above", "two above"])
def test_directory_that_others_can_write_is_not_loaded_from(disk, elsewhere, monkeypatch, mode, of):
    above = disk.root / "a" / "b"
    settings.set_defaults(cache_dir=above)
    disk.folder = above / "kernels"
    assert disk.use() == "saves"
    spoiled = {"its directory": disk.folder, "the directory above": above, "two above": above.parent}[of]
    assert stat.S_IMODE(spoiled.stat().st_mode) == 0o700, "every directory is made for this user alone"
    spoiled.chmod(mode)
    look_again()
    seen = opened(monkeypatch)
    if mode == 0o1777 and spoiled != disk.folder:
        assert disk.use() == "hits" and disk.warned == [], "as /tmp: others cannot rename what is not theirs"
        return
    assert disk.use() == "saves", "not loaded; compiled, and kept in a private directory"
    [said] = disk.warned
    assert str(spoiled) in said and "can be written by" in said and str(elsewhere) in said
    assert kernel_cache.directory() == elsewhere and stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert disk.use() == "hits" and disk.warned == [] and disk.folder not in {path.parent for path in seen}
    spoiled.chmod(0o700)
    look_again()
    assert disk.use() == "hits" and kernel_cache.directory() == disk.folder


@pytest.mark.parametrize("of", ["its directory", "the directory above"])
def test_directory_of_another_user_is_not_loaded_from(disk, strangers, monkeypatch, of):
    """Nor by root, who reads everything; and where nothing is private, each process compiles."""
    assert disk.use() == "saves"
    strangers({"its directory": disk.folder, "the directory above": disk.root}[of])
    monkeypatch.setattr(kernel_files, "_below", lambda chosen: str(disk.folder))
    monkeypatch.setattr(kernel_files.tempfile, "gettempdir", lambda: str(disk.root / "kernels"))
    look_again()
    assert disk.use() == "compiled"
    assert all("belongs to another user" in said for said in disk.warned) and disk.warned
    assert disk.use() == "compiled" and disk.warned == []


def test_file_of_another_user_is_not_loaded(disk, strangers, monkeypatch):
    assert disk.use() == "saves"
    [path] = disk.files
    strangers(path)
    assert disk.use() in ("saves", "compiled") and "belongs to another user" in disk.warned[0]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_file_that_others_can_write_is_not_loaded(disk):
    disk.use()
    [path] = disk.files
    for mode, whom in ((0o620, "its group"), (0o602, "everybody")):
        path.chmod(mode)
        kernel_cache._warned.clear()
        assert disk.use() == "saves" and path.stat().st_mode & 0o777 == 0o600, "replaced by one of our own"
        assert len(disk.warned) == 1 and f"can be written by {whom}" in disk.warned[0]
        assert disk.use() == "hits"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_shipped_kernels_that_others_can_write_are_not_loaded(disk, tmp_path):
    assert disk.use() == "saves"
    shipped = tmp_path / "shipped"
    disk.folder.rename(shipped)
    shipped.chmod(0o775)
    settings.set_defaults(shipped_cache=shipped)
    look_again()
    assert disk.use() == "saves" and "can be written by its group" in disk.warned[0]
    shipped.chmod(0o755)
    for path in shipped.iterdir():
        path.chmod(0o644)
    kernel_cache.clear()
    assert disk.use() == "hits", "others may read"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_every_step_through_links_is_looked_at(tmp_path):
    deep = tmp_path / "open" / "mine" / "kernels"
    deep.mkdir(parents=True, mode=0o700)
    for path in (deep, deep.parent, deep.parent.parent):
        path.chmod(0o700)
    link, turns_back = tmp_path / "link", tmp_path / "link" / ".." / "mine" / "kernels"
    link.symlink_to("open/mine")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert kernel_files.untrusted(str(link / "kernels")) == kernel_files.untrusted(str(turns_back)) == ""
    assert (
        "too many" in kernel_files.untrusted(str(loop)) and kernel_files.untrusted(str(tmp_path / "none" / "x")) == ""
    )
    (tmp_path / "open").chmod(0o770)
    for path in (link / "kernels", turns_back, deep):
        assert kernel_files.untrusted(str(path)) == f"{tmp_path / 'open'} can be written by its group"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
@pytest.mark.parametrize("me, owner, trusted", [
    (0, 0, True), (0, 7, False), (7, 7, True), (7, 0, True), (7, 8, False),
])  # fmt: skip
def test_whom_each_user_trusts(monkeypatch, me, owner, trusted):
    monkeypatch.setattr(kernel_files, "_user", lambda: me)
    info = os.stat_result((stat.S_IFDIR | 0o755, 1, 1, 1, owner, 0, 0, 0, 0, 0))
    assert (kernel_files._distrust("there", info) == "") == trusted


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_lock_of_timings_is_not_opened_where_others_can_write(disk):
    assert turns.lock_file("cpu").startswith(str(disk.root))
    disk.root.chmod(0o777)
    assert turns.lock_file("cpu") is None
