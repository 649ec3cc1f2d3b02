from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.supervise import caches
from toolkit.units import MIB


def mounts(tmp_path: Path, *lines: str) -> Path:
    """A /proc whose only word is of these mounts: ``POINT KIND``."""
    (tmp_path / "proc/self").mkdir(parents=True)
    told = "".join(f"36 35 98:0 / {line.split()[0]} rw shared:1 - {line.split()[1]} dev rw\n" for line in lines)
    (tmp_path / "proc/self/mountinfo").write_text(told)
    return tmp_path / "proc"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "fuse.sshfs", "9p", "ceph"])
def test_a_network_file_system_is_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    proc = mounts(tmp_path, "/ ext4", f"{tmp_path} {kind}")
    with pytest.raises(ToolkitError) as caught:
        caches.prepare(tmp_path / "cache" / "abc", proc)
    assert caught.value.code == "network_cache"
    assert kind in caught.value.what
    assert "COEXIST_CACHE" in str(caught.value.hint)
    assert not (tmp_path / "cache").exists()


def test_a_local_disk_below_a_network_mount_is_fine(tmp_path: Path) -> None:
    proc = mounts(tmp_path, "/ nfs", f"{tmp_path} xfs", "/elsewhere nfs")
    caches.prepare(tmp_path / "cache" / "abc", proc)
    assert caches.file_system(tmp_path / "x", proc) == "xfs"


def test_of_two_mounts_on_one_point_the_last_is_seen_and_names_may_hold_spaces(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    proc = mounts(tmp_path, "/ ext4", f"{tmp_path}/a\\040b nfs", f"{tmp_path}/a\\040b tmpfs")
    assert caches.file_system(place / "deep", proc) == "tmpfs"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse.fuse-overlayfs", "zfs", "virtiofs"])
def test_local_file_systems_are_taken(kind: str) -> None:
    assert not caches.is_network(kind)


def test_a_cache_is_cold_until_a_compiler_has_left_something(tmp_path: Path) -> None:
    folder = tmp_path / "abc"
    assert caches.prepare(folder).state == "cold"
    (folder / "xdg").mkdir()
    (folder / "xdg" / "settings").write_text("")
    assert caches.prepare(folder).state == "cold"
    (folder / "triton").mkdir()
    (folder / "triton" / "kernel.cubin").write_text("")
    assert caches.prepare(folder).state == "warm"


def test_a_place_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone" / "abc")
    for place in ("file/abc", "file", "loop", "loop/abc", "nowhere"):
        with pytest.raises(ToolkitError) as caught:
            caches.prepare(tmp_path / place)
        assert "cache folder cannot be used" in caught.value.what


def test_a_full_disk_is_told_before_a_program_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, caches.MIN_FREE_BYTES - 1))
    with pytest.raises(ToolkitError) as caught:
        caches.prepare(tmp_path / "abc")
    assert (caught.value.code, caught.value.details["available"]) == ("no_space", 64 * MIB - 1)


def test_a_stale_lock_is_gone_and_told(tmp_path: Path) -> None:
    lock = tmp_path / "abc" / "torch-extensions" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    notes = caches.prepare(tmp_path / "abc").notes
    assert not lock.exists()
    assert notes == (f"removed from its cache folder: the stale lock {lock}",)


def test_a_lock_that_somebody_holds_stays(tmp_path: Path) -> None:
    lock = tmp_path / "abc" / "triton" / "x.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        held.write(str(os.getpid()))
        held.flush()
        assert caches.prepare(tmp_path / "abc").notes == ()
    assert lock.exists()


def used(folder: Path, at_s: float) -> Path:
    caches.prepare(folder)
    os.utime(folder / caches.USED, (at_s, at_s))
    return folder


def test_of_other_environments_the_last_used_ones_stay(tmp_path: Path) -> None:
    folders = [used(tmp_path / f"e{number}", 1000.0 + number) for number in range(caches.MAX_OLD)]
    oldest = used(tmp_path / "oldest", 1.0)
    foreign = tmp_path / "notes"
    foreign.mkdir()
    assert caches.prepare(tmp_path / "now").notes == ("removed caches of earlier environments: oldest",)
    assert not oldest.exists()
    assert all(folder.exists() for folder in (*folders, foreign))


def test_old_caches_that_take_too_much_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MAX_BYTES", 100 * 1024)
    newer, older = used(tmp_path / "newer", 2.0), used(tmp_path / "older", 1.0)
    for folder in (newer, older):
        (folder / "kernel.cubin").write_bytes(b"x" * 64 * 1024)
    caches.prepare(tmp_path / "now")
    assert (newer.exists(), older.exists()) == (True, False)
