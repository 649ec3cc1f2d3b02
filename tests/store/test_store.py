from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.store.conftest import FINGERPRINT, OTHER, build_two_files, names
from toolkit.errors import ToolkitError
from toolkit.processes import this_process
from toolkit.store import Store, publish
from toolkit.store import store as module

Spawn = Callable[..., BaseProcess]
WHOLE = {"schema": 1, "name": "a", "fingerprint": "b", "build": {}}


def must_not_build(_folder: Path) -> dict[str, Any]:
    raise AssertionError("built again")


def files_under(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def flip_a_byte(path: Path, keep_times: bool) -> None:
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    if keep_times:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_engine_is_built_once_then_reused(store: Store) -> None:
    built = store.ensure("llm", FINGERPRINT, build_two_files)
    assert built.path == store.engines / FINGERPRINT[:16]
    assert not built.reused
    assert built.build == {"dtype": "float32"}
    again = store.ensure("llm", FINGERPRINT, must_not_build)
    assert again.reused
    assert again.manifest == built.manifest
    assert store.entries() == (again,)


def test_the_manifest_names_every_file_with_size_and_hash(store: Store) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    assert set(entry.manifest["files"]) == {"decode.pt2", "tokenizer/vocab.json"}
    assert entry.size_bytes == 608
    assert json.loads((entry.path / "manifest.json").read_text()) == entry.manifest
    assert store.verify(entry) == store.check(entry) == ()


def test_a_failed_build_leaves_nothing_and_its_own_error(store: Store) -> None:
    def fails(folder: Path) -> dict[str, Any]:
        build_two_files(folder)
        raise ToolkitError("no C++ compiler")

    with pytest.raises(ToolkitError, match="no C\\+\\+ compiler"):
        store.ensure("llm", FINGERPRINT, fails)
    assert store.entries() == ()
    assert not any(name.endswith(".pt2") for name in files_under(store.root))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_how_much_was_needed_and_where(store: Store, code: int) -> None:
    def fills(folder: Path) -> dict[str, Any]:
        (folder / "part").write_bytes(b"x" * 2048)
        raise OSError(code, os.strerror(code))

    with pytest.raises(ToolkitError) as caught:
        store.ensure("llm", FINGERPRINT, fills)
    assert caught.value.code == "no_space"
    assert caught.value.details["needed"] == 2049
    assert "cannot build engine 'llm'" in str(caught.value)
    assert "prune" in str(caught.value)
    assert files_under(store.engines / ".staging") == []


def test_a_full_disk_asks_for_the_size_of_last_time(store: Store) -> None:
    store.ensure("llm", FINGERPRINT, build_two_files)

    def fills(_folder: Path) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(ToolkitError) as caught:
        store.ensure("llm", OTHER, fills)
    assert caught.value.details["needed"] == 608


def test_a_file_size_limit_leaves_nothing_that_looks_built(store: Store, tmp_path: Path, spawn: Spawn) -> None:
    for limit in (0, 100, 599, 700):  # before the first file, inside it, at its end, inside the manifest

        def child(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                store.ensure("llm", FINGERPRINT, lambda folder: {**build_two_files(folder), "notes": "x" * 600})
            except ToolkitError as error:
                os._exit(10 if error.code == "no_space" else 11)
            os._exit(0)

        process = spawn(child)
        process.join()
        assert process.exitcode == 10, limit
        assert store.entries() == store.unreadable() == ()
        assert files_under(store.engines / ".staging") == []
    assert not store.ensure("llm", FINGERPRINT, build_two_files).reused


def killed_at(step: int) -> None:
    """From now on this process dies by SIGKILL at its n-th step that touches the disk's order, before or after it."""
    count = 0

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
        setattr(os, name, deadly(getattr(os, name)))
    publish._renameat2_exchange = deadly(publish._renameat2_exchange)


@pytest.mark.parametrize("force", [False, True])
def test_kill_at_any_step_leaves_a_whole_engine_or_none(tmp_path: Path, spawn: Spawn, force: bool) -> None:
    def child(root: Path, step: int) -> None:
        killed_at(step)
        Store(root).ensure("llm", FINGERPRINT, lambda folder: {**build_two_files(folder), "run": "new"}, force=force)
        os._exit(0)

    for step in range(1, 200):
        root = tmp_path / str(step)
        store = Store(root)
        if force:
            store.ensure("llm", FINGERPRINT, lambda folder: {**build_two_files(folder), "run": "old"})
        process = spawn(child, root, step)
        process.join()
        for entry in store.entries():
            assert store.verify(entry) == ()
        assert store.unreadable() == ()
        assert len(store.entries()) == 1 or not force
        finished = process.exitcode == 0
        assert store.ensure("llm", FINGERPRINT, must_not_build if finished else build_two_files).path.is_dir()
        store.prune({FINGERPRINT})
        assert files_under(store.engines / ".staging") == files_under(store.engines / ".trash") == []
        if finished:
            break
    else:
        pytest.fail("never finished")
    assert step > 15


def test_two_builds_at_once_make_one_engine_and_the_second_says_that_it_waits(
    store: Store, tmp_path: Path, spawn: Spawn
) -> None:
    def slow(folder: Path) -> dict[str, Any]:
        with (tmp_path / "builds").open("a") as file:
            file.write("x")
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return build_two_files(folder)

    def child(number: int) -> None:
        said = (tmp_path / f"said{number}").open("a", buffering=1)
        entry = Store(store.root).ensure("llm", FINGERPRINT, slow, report=lambda line: print(line, file=said))
        (tmp_path / f"reused{number}").write_text(str(entry.reused))
        os._exit(0)

    children = [spawn(child, number) for number in range(2)]
    said = [tmp_path / f"said{number}" for number in range(2)]
    while not any(path.exists() and "waiting" in path.read_text() for path in said):
        assert all(process.is_alive() for process in children)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    for process in children:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "builds").read_text() == "x"
    assert sorted((tmp_path / f"reused{n}").read_text() for n in range(2)) == ["False", "True"]
    waiter = next(path.read_text() for path in said if "waiting" in path.read_text())
    builder = children[0] if "waiting" in said[1].read_text() else children[1]
    assert f"process {builder.pid} is building engine 'llm'" in waiter


def test_a_living_build_of_another_process_is_not_swept(store: Store, tmp_path: Path, spawn: Spawn) -> None:
    def slow(folder: Path) -> dict[str, Any]:
        (folder / "part").touch()
        (tmp_path / "started").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return build_two_files(folder)

    def child() -> None:
        store.ensure("slow", OTHER, slow)
        os._exit(0)

    process = spawn(child)
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    store.ensure("llm", FINGERPRINT, build_two_files)
    assert store.prune({FINGERPRINT}).leftovers == ()
    assert len(files_under(store.engines / ".staging")) == 1
    (tmp_path / "go").touch()
    process.join()
    assert [entry.name for entry in store.entries()] == ["llm", "slow"]


def test_leftovers_of_another_boot_go_and_of_another_container_stay_while_it_builds(store: Store) -> None:
    store.ensure("llm", FINGERPRINT, build_two_files)
    staging = store.engines / ".staging"
    me = this_process()
    earlier_boot = staging / f"{OTHER[:16]}.{me.pid}.{me.start_time}.00000000.{me.pid_namespace}.aa"
    container = staging / f"{OTHER[:16]}.1.1.{me.boot_id[:8]}.{me.pid_namespace + 1}.bb"
    for folder in (earlier_boot, container):
        folder.mkdir()
    with module.locks.exclusive_now(store.engines / ".locks" / f"{OTHER[:16]}.lock"):
        store.sweep()
        assert list(staging.iterdir()) == [container]
    store.sweep()
    assert list(staging.iterdir()) == []


def test_force_builds_again(store: Store) -> None:
    store.ensure("llm", FINGERPRINT, build_two_files)
    entry = store.ensure("llm", FINGERPRINT, lambda folder: {**build_two_files(folder), "dtype": "other"}, force=True)
    assert not entry.reused
    assert entry.build == {"dtype": "other"}
    assert store.verify(entry) == ()
    assert files_under(store.engines / ".trash") == files_under(store.engines / ".staging") == []


def test_force_does_not_break_a_running_reader(store: Store) -> None:
    old = store.ensure("llm", FINGERPRINT, build_two_files)
    with store.use(old) as use:
        folder = os.open(old.path, os.O_RDONLY)
        store.ensure("llm", FINGERPRINT, build_two_files, force=True)
        reader = os.open("decode.pt2", os.O_RDONLY, dir_fd=folder)
        assert os.read(reader, 6) == b"decode"
        store.prune(set())
        assert "decode.pt2" in names(Path(f"/proc/self/fd/{folder}"))
        assert use.fileno() >= 0
    os.close(reader)
    os.close(folder)
    store.sweep()
    assert files_under(store.engines / ".trash") == []


def test_the_old_engine_stays_when_a_forced_build_fails(store: Store) -> None:
    store.ensure("llm", FINGERPRINT, build_two_files)

    def fails(_folder: Path) -> dict[str, Any]:
        raise ToolkitError("no")

    with pytest.raises(ToolkitError):
        store.ensure("llm", FINGERPRINT, fails, force=True)
    assert store.ensure("llm", FINGERPRINT, must_not_build).reused


def test_a_flipped_byte_is_found_and_named_by_verify(store: Store) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    flip_a_byte(entry.path / "decode.pt2", keep_times=True)
    assert store.check(entry) == ()
    (fault,) = store.verify(entry)
    assert fault.path == entry.path / "decode.pt2"
    assert "SHA-256" in str(fault)


def test_a_boot_refuses_a_touched_and_changed_file(store: Store) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    flip_a_byte(entry.path / "decode.pt2", keep_times=False)
    with pytest.raises(ToolkitError, match=r"engine 'llm' is damaged: 'decode.pt2'.*--force") as caught:
        store.ensure("llm", FINGERPRINT, must_not_build)
    assert caught.value.code == "engine_damaged"
    assert not store.ensure("llm", FINGERPRINT, build_two_files, force=True).reused


def test_a_missing_file_is_damage_too(store: Store) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    (entry.path / "tokenizer" / "vocab.json").unlink()
    assert [fault.problem for fault in store.check(entry)] == ["is missing"]
    with pytest.raises(ToolkitError, match=r"vocab\.json' is missing"):
        store.ensure("llm", FINGERPRINT, must_not_build)


def test_an_added_file_and_a_link_are_found_by_verify(store: Store) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    (entry.path / "tokenizer" / "added.json").touch()
    (entry.path / "link").symlink_to("decode.pt2")
    assert {fault.path.name for fault in store.verify(entry)} == {"added.json", "link"}


def test_a_copied_store_is_read_once_and_then_trusted(store: Store, tmp_path: Path) -> None:
    store.ensure("llm", FINGERPRINT, build_two_files)
    shutil.copytree(store.root, tmp_path / "copy")
    copy = Store(tmp_path / "copy")
    (entry,) = copy.entries()
    assert copy.check(entry) != ()
    said: list[str] = []
    assert copy.ensure("llm", FINGERPRINT, must_not_build, report=said.append).reused
    assert "touched" in said[0]
    assert copy.ensure("llm", FINGERPRINT, must_not_build, report=said.append).reused
    assert len(said) == 1


def test_a_folder_without_manifest_is_not_an_engine_and_is_built_over(store: Store) -> None:
    path = store.path_of(FINGERPRINT)
    path.mkdir(parents=True)
    (path / "decode.pt2").touch()
    assert store.entries() == ()
    assert [fault.path for fault in store.unreadable()] == [path]
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    assert store.verify(entry) == store.unreadable() == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "damaged"),
        ("[]", "no manifest"),
        ('{"schema": 1}', "no manifest"),
        (json.dumps({**WHOLE, "files": {"a": 1}}), "no manifest"),
        (
            json.dumps({**WHOLE, "files": {"../a": {"size": 1, "mtime_ns": 1, "inode": 1, "sha256": ""}}}),
            "no manifest",
        ),
        ('{"schema": 2, "anything": 1}', "newer coexist"),
    ],
)
def test_a_strange_manifest_is_refused_and_listed(store: Store, content: str, problem: str) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    (entry.path / "manifest.json").write_text(content)
    with pytest.raises(ToolkitError, match=problem):
        store.ensure("llm", FINGERPRINT, must_not_build)
    assert store.entries() == ()
    assert problem in store.unreadable()[0].problem


def test_an_engine_of_another_fingerprint_in_the_same_place_is_refused(store: Store) -> None:
    store.ensure("llm", FINGERPRINT, build_two_files)
    with pytest.raises(ToolkitError, match="holds another engine"):
        store.ensure("llm", FINGERPRINT[:16] + "0" * 48, must_not_build)


def test_a_symbolic_link_in_a_build_is_refused(store: Store) -> None:
    def links(folder: Path) -> dict[str, Any]:
        (folder / "model").symlink_to("/etc/hostname")
        return {}

    with pytest.raises(ToolkitError, match="symbolic link"):
        store.ensure("llm", FINGERPRINT, links)
    assert store.entries() == ()


def test_progress_says_what_is_done_and_how_long_it_took_last_time(tmp_path: Path) -> None:
    ticks = iter(range(0, 10_000, 90))
    store = Store(tmp_path, clock=lambda: float(next(ticks)))
    said: list[str] = []
    store.ensure("llm", FINGERPRINT, build_two_files)
    store.ensure("llm", OTHER, build_two_files, report=said.append)
    assert said[0] == "building engine 'llm'; it took 1 min 30 s last time"
    assert "608 B" in said[1]
    assert str(store.path_of(OTHER)) in said[2]
    past = store.last("llm")
    assert past is not None
    assert (past.seconds, past.size_bytes) == (90.0, 608)


def test_prune_keeps_what_is_kept_and_says_what_it_frees(store: Store) -> None:
    kept = store.ensure("kept", FINGERPRINT, build_two_files)
    gone = store.ensure("gone", OTHER, build_two_files)
    would = store.prune({FINGERPRINT}, dry_run=True)
    assert [entry.name for entry in would.removed] == ["gone"]
    assert gone.path.is_dir()
    did = store.prune({FINGERPRINT})
    assert did == would
    assert did.freed_bytes >= gone.size_bytes
    assert not gone.path.exists()
    assert [entry.name for entry in store.entries()] == [kept.name]


def test_prune_never_removes_an_engine_in_use(store: Store, tmp_path: Path, spawn: Spawn) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)

    def child() -> None:
        with store.use(entry):
            (tmp_path / "using").touch()
            time.sleep(600)

    process = spawn(child)
    while not (tmp_path / "using").exists():
        time.sleep(0.01)
    for dry_run in (True, False):
        pruned = store.prune(set(), dry_run=dry_run)
        assert pruned.removed == ()
        assert [used.name for used in pruned.in_use] == ["llm"]
    assert store.verify(entry) == ()
    process.kill()
    process.join()
    assert [used.name for used in store.prune(set()).removed] == ["llm"]


def test_a_child_that_inherits_the_hold_keeps_it(store: Store, spawn: Spawn) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    use = store.use(entry)
    child = spawn(time.sleep, 600)
    use.close()
    use.close()
    assert store.prune(set()).removed == ()
    child.kill()
    child.join()
    assert len(store.prune(set()).removed) == 1


def test_using_an_engine_that_was_removed_is_an_error(store: Store) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)
    store.prune(set())
    with pytest.raises(ToolkitError, match="not there any more"):
        store.use(entry)


def test_a_prune_that_only_looks_does_not_turn_a_user_away(store: Store, spawn: Spawn, tmp_path: Path) -> None:
    entry = store.ensure("llm", FINGERPRINT, build_two_files)

    def look() -> None:
        with module.locks.unused(entry.path) as free:
            (tmp_path / "looking").write_text(str(free))
            time.sleep(0.1)

    spawn(look)
    while not (tmp_path / "looking").exists():
        time.sleep(0.01)
    with store.use(entry):
        assert store.prune(set()).removed == ()


def test_an_adopted_engine_is_checked_copied_and_reused(store: Store, tmp_path: Path) -> None:
    made = Store(tmp_path / "other").ensure("llm", FINGERPRINT, build_two_files)
    folder = tmp_path / "from-usb"
    shutil.copytree(made.path, folder)
    entry = store.adopt(folder)
    assert not entry.reused
    assert (entry.name, entry.fingerprint, entry.build) == ("llm", FINGERPRINT, made.build)
    assert store.verify(entry) == store.check(entry) == ()
    assert store.ensure("llm", FINGERPRINT, must_not_build).reused


def test_a_damaged_or_nameless_folder_is_not_adopted(store: Store, tmp_path: Path) -> None:
    made = Store(tmp_path / "other").ensure("llm", FINGERPRINT, build_two_files)
    flip_a_byte(made.path / "decode.pt2", keep_times=True)
    with pytest.raises(ToolkitError, match=r"decode\.pt2"):
        store.adopt(made.path)
    with pytest.raises(ToolkitError, match=r"no manifest\.json"):
        store.adopt(tmp_path)
    assert store.entries() == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_root_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ToolkitError, match="permission is denied"):
        Store(tmp_path).ensure("llm", FINGERPRINT, build_two_files)


def test_a_read_only_file_system_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_args: Any, **_kwargs: Any) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system", str(store.engines))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(ToolkitError, match="cannot make the engine store: the file system is read-only"):
        store.ensure("llm", FINGERPRINT, build_two_files)
