from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from toolkit.supervise.leftovers import SHM, Leftovers, boot_time_s

SLEEPS = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "torch-extensions" / "ext"
    folder.mkdir(parents=True)
    return folder


def clean(cache: Path) -> tuple[str, ...]:
    return Leftovers(cache).clean()


def test_a_lock_that_its_dead_holder_left_is_removed_and_told(cache: Path) -> None:
    (cache / "lock").touch()
    (cache / "kernel.so").write_text("compiled")
    assert clean(cache) == (f"the stale lock {cache / 'lock'}",)
    assert [path.name for path in cache.iterdir()] == ["kernel.so"]


def test_a_lock_that_somebody_holds_stays(cache: Path) -> None:
    with (cache / "x.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert clean(cache) == ()
    assert (cache / "x.lock").exists()


def test_a_lock_that_names_a_living_process_stays_until_that_ends(cache: Path) -> None:
    with subprocess.Popen(SLEEPS) as holder:
        (cache / "build.lock").write_text(f"{holder.pid}\n")
        assert clean(cache) == ()
        holder.kill()
    assert clean(cache) == (f"the stale lock {cache / 'build.lock'}",)


def test_a_pipe_that_is_called_a_lock_is_not_waited_for(cache: Path) -> None:
    os.mkfifo(cache / "fifo.lock")
    assert Leftovers(cache).clean() == (f"the stale lock {cache / 'fifo.lock'}",)


def test_a_lock_older_than_this_boot_names_nobody(cache: Path) -> None:
    (cache / "build.lock").write_text(f"{os.getpid()}\n")  # the number lives again
    assert clean(cache) == ()
    os.utime(cache / "build.lock", (boot_time_s() - 60,) * 2)
    assert clean(cache) == (f"the stale lock {cache / 'build.lock'}",)


def test_half_written_files_go_unless_somebody_writes_them(cache: Path) -> None:
    (cache / "a.bin.tmp").write_text("half")
    with (cache / "b.incomplete").open("w"):
        assert clean(cache) == (f"the half-written {cache / 'a.bin.tmp'}",)
    assert (cache / "b.incomplete").exists()


def test_nothing_outside_the_services_own_folder_is_touched(tmp_path: Path, cache: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "lock").touch()
    (cache / "link").symlink_to(other)
    assert clean(cache) == ()
    assert clean(tmp_path / "none") == ()
    assert Leftovers(None).clean() == ()
    assert (other / "lock").exists()


# A tree that makes shared memory and dies without removing it.
MAKES = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
made = shared_memory.SharedMemory(sys.argv[1], create=True, size=4096)
resource_tracker.unregister(made._name, "shared_memory")
print("made", flush=True)
time.sleep(600)
"""


@pytest.fixture
def segment() -> Iterator[str]:
    name = f"coexist-test-{os.getpid()}"
    yield name
    (SHM / name).unlink(missing_ok=True)


def test_shared_memory_of_the_dead_tree_goes_and_no_other(segment: str) -> None:
    found = Leftovers(None)
    foreign = shared_memory.SharedMemory(f"{segment}-foreign", create=True, size=4096)
    try:
        with subprocess.Popen([sys.executable, "-c", MAKES, segment], stdout=subprocess.PIPE) as maker:
            assert maker.stdout is not None
            maker.stdout.readline()
            found.look([maker.pid])
            assert found.clean() == (), "it is in use"
            maker.kill()
        assert found.clean() == (f"the shared memory {SHM / segment}",)
        assert (SHM / f"{segment}-foreign").exists()
    finally:
        foreign.close()
        foreign.unlink()


def test_a_name_that_was_used_again_by_somebody_else_is_not_ours(segment: str, tmp_path: Path) -> None:
    path = tmp_path / "shm" / segment
    path.parent.mkdir()
    path.touch()
    found = Leftovers(None, shm=path.parent)
    with path.open():
        found.look([os.getpid()])
    path.rename(tmp_path / "kept")  # so that its inode stays taken
    path.touch()
    assert found.clean() == ()


def test_the_boot_was_before_now() -> None:
    assert boot_time_s() < time.time()
