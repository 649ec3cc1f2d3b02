from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.conftest import RELEASE, SITE, Compiler, real_libraries
from toolkit.environments import linking, loader
from toolkit.environments.linking import Process, Resolution
from toolkit.environments.loader import Files, Search

PYTHON = Path(sys.base_prefix) / f"bin/python{RELEASE}"
LOAD = """
import ctypes, json, sys
error = None
for path in sys.argv[1:]:
    try:
        ctypes.CDLL(path)
    except OSError as fault:
        error = str(fault)
        break
rows = [line.split(None, 5) for line in open("/proc/self/maps")]
print(json.dumps([error, sorted({row[5].strip() for row in rows if len(row) > 5 and ".so" in row[5]})]))
"""


def process(library_path: str | None = None, preload: tuple[Path, ...] = ()) -> Process:
    search = Search(loader.read(), loader.library_path(library_path))
    started, resolution = linking.start(search, Files(), PYTHON, preload)
    assert resolution is not None
    assert resolution.loads
    return started


def really(*paths: Path, library_path: str | None = None) -> tuple[str | None, set[Path]]:
    """What this machine's own loader says (its error, the files it mapped) when these are loaded one by one."""
    env = {"PATH": "/usr/bin:/bin"} | ({"LD_LIBRARY_PATH": library_path} if library_path else {})
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-c", LOAD, *paths], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    error, mapped = json.loads(done.stdout)
    return error, {Path(path) for path in mapped}


def taken(resolution: Resolution, name: str) -> tuple[Path | None, str | None]:
    library = next(library for library in resolution.libraries if library.name == name)
    return library.path, library.via


@pytest.fixture
def folders(tmp_path: Path, compile_library: Compiler) -> Path:
    """libinner.so in folders a, b and c, each its own file."""
    for name in "abc":
        compile_library("libinner.so", f'extern "C" int from_{name}() {{ return 1; }}', folder=tmp_path / name)
    return tmp_path


def outer(compile_library: Compiler, folders: Path, *flags: str) -> Path:
    return compile_library("outer.so", needs=[folders / "a/libinner.so"], flags=flags, soname="")


def test_rpath_is_searched_before_ld_library_path(compile_library: Compiler, folders: Path) -> None:
    file = outer(compile_library, folders, f"-Wl,-rpath,{folders}/b", "-Wl,--disable-new-dtags")
    resolution = process(f"{folders}/c").load(file)
    assert resolution.loads
    assert taken(resolution, "libinner.so") == (folders / "b/libinner.so", "rpath")
    assert folders / "b/libinner.so" in really(file, library_path=f"{folders}/c")[1]


def test_runpath_is_searched_after_ld_library_path_and_the_file_passed_over_is_told(
    compile_library: Compiler, folders: Path
) -> None:
    file = outer(compile_library, folders, f"-Wl,-rpath,{folders}/b", "-Wl,--enable-new-dtags")
    resolution = process(f"{folders}/c").load(file)
    assert taken(resolution, "libinner.so") == (folders / "c/libinner.so", "ld_library_path")
    assert [(lib.name, lib.passed_over) for lib in resolution.shadowed] == [("libinner.so", folders / "b/libinner.so")]
    assert folders / "c/libinner.so" in really(file, library_path=f"{folders}/c")[1]
    alone = process().load(file)
    assert taken(alone, "libinner.so") == (folders / "b/libinner.so", "runpath")
    assert alone.shadowed == ()


@pytest.mark.parametrize(("tags", "found"), [("disable", True), ("enable", False)])
def test_only_rpath_reaches_the_needs_of_needs(
    compile_library: Compiler, folders: Path, tags: str, found: bool
) -> None:
    middle = compile_library("libmiddle.so", needs=[folders / "a/libinner.so"], folder=folders / "b")
    flags = [f"-Wl,-rpath,{folders}/b:{folders}/c", f"-Wl,--{tags}-new-dtags", "-Wl,--allow-shlib-undefined"]
    file = compile_library("top.so", needs=[middle], flags=[*flags, f"-Wl,-rpath-link,{folders}/a"], soname="")
    (folders / "b/libinner.so").unlink()
    resolution = process().load(file)
    error, mapped = really(file)
    assert resolution.loads is found is (error is None)
    assert (folders / "c/libinner.so" in mapped) is found
    if not found:
        assert [(lib.name, lib.asked_by) for lib in resolution.missing] == [("libinner.so", middle)]
        assert "libinner.so" in str(error)


def test_a_library_already_in_the_process_wins_by_its_soname(compile_library: Compiler, folders: Path) -> None:
    first = folders / "c/libinner.so"
    file = outer(compile_library, folders, f"-Wl,-rpath,{folders}/b", "-Wl,--disable-new-dtags")
    running = process()
    running.load(first)
    resolution = running.load(file)
    assert taken(resolution, "libinner.so") == (first, "loaded")
    assert resolution.shadowed[0].passed_over == folders / "b/libinner.so"
    mapped = really(first, file)[1]
    assert first in mapped
    assert folders / "b/libinner.so" not in mapped


def test_origin_is_the_folder_of_the_name_that_was_asked_for(compile_library: Compiler, folders: Path) -> None:
    file = outer(compile_library, folders, "-Wl,-rpath,$ORIGIN/near")
    place = folders / "linked"
    shutil.copytree(folders / "b", place / "near")
    (place / "outer.so").symlink_to(file)
    assert taken(process().load(place / "outer.so"), "libinner.so")[0] == place / "near/libinner.so"
    assert place / "near/libinner.so" in really(place / "outer.so")[1]
    assert process().load(file).missing[0].name == "libinner.so"
    assert "libinner.so" in str(really(file)[0])


def test_files_of_another_machine_are_passed_over(compile_library: Compiler, folders: Path) -> None:
    foreign = bytearray((folders / "c/libinner.so").read_bytes())
    foreign[18:20] = (183).to_bytes(2, "little")
    (folders / "c/libinner.so").write_bytes(foreign)
    file = outer(compile_library, folders, f"-Wl,-rpath,{folders}/b")
    resolution = process(f"{folders}/c").load(file)
    assert taken(resolution, "libinner.so")[0] == folders / "b/libinner.so"
    assert really(file, library_path=f"{folders}/c")[0] is None
    whole = process().load(folders / "c/libinner.so")
    assert not whole.loads
    assert "another machine" in whole.errors[0][1]


def test_the_system_folders_can_be_shut_out(compile_library: Compiler) -> None:
    file = compile_library("shut.so", flags=["-Wl,-z,nodefaultlib"], soname="")
    lost = {library.name for library in process().copy().load(file).missing}
    assert "libstdc++.so.6" in lost
    assert "libc.so.6" not in lost, "the program loaded that one"
    assert "libstdc++.so.6" in str(really(file)[0])


def test_a_symbol_that_nobody_exports_is_found_with_its_file(compile_library: Compiler) -> None:
    inner = compile_library("libguilty.so", 'extern "C" int nowhere(); int use() { return nowhere(); }')
    file = compile_library(
        "innocent.so", needs=[inner], flags=[f"-Wl,-rpath,{inner.parent}", "-Wl,--allow-shlib-undefined"]
    )
    resolution = process().load(file)
    assert [(u.symbol, u.asked_by) for u in resolution.unresolved] == [("nowhere", inner)]
    assert "nowhere" in str(really(file)[0])


def test_a_weak_symbol_may_stay_unbound(compile_library: Compiler) -> None:
    source = 'extern "C" int maybe() __attribute__((weak)); int use() { return maybe ? maybe() : 0; }'
    file = compile_library("weak.so", source)
    assert process().load(file).loads
    assert really(file)[0] is None


def test_symbols_of_the_interpreter_are_there(compile_library: Compiler) -> None:
    source = 'extern "C" { void* PyLong_FromLong(long); void* make() { return PyLong_FromLong(1); } }'
    assert process().load(compile_library("python.so", source)).loads


def test_local_libraries_do_not_serve_others_but_public_ones_do(compile_library: Compiler) -> None:
    provider = compile_library("libprovider.so", 'extern "C" int provided() { return 1; }')
    file = compile_library("user.so", 'extern "C" int provided(); int use() { return provided(); }')
    hidden, shown = process(), process()
    hidden.load(provider)
    shown.load(provider, public=True)
    assert [u.symbol for u in hidden.load(file).unresolved] == ["provided"]
    assert shown.load(file).loads
    assert process(preload=(provider,)).load(file).loads
    assert "provided" in str(really(provider, file)[0])


def versioned(compile_library: Compiler, folder: str, *versions: str) -> Path:
    script = compile_library.folder / "script.map"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("".join(f"{version} {{ global: at_{version}; }};\n" for version in versions))
    source = 'extern "C" {' + "".join(f"int at_{version}() {{ return 1; }}" for version in versions) + "}"
    place = compile_library.folder / folder
    return compile_library("libversions.so", source, flags=[f"-Wl,--version-script={script}"], folder=place)


def test_a_library_older_than_the_one_linked_against_is_told_by_its_versions(compile_library: Compiler) -> None:
    new = versioned(compile_library, "new", "V_1", "V_2")
    old = versioned(compile_library, "old", "V_1")
    file = compile_library("user.so", 'extern "C" int at_V_2(); int use() { return at_V_2(); }', needs=[new], soname="")
    resolution = process(str(old.parent)).load(file)
    assert [(m.library, m.version) for m in resolution.missing_versions] == [(old, "V_2")]
    assert "version `V_2' not found" in str(really(file, library_path=str(old.parent))[0])
    assert process(str(new.parent)).load(file).loads


def test_symbols_that_a_missing_library_may_bring_stay_undecided(compile_library: Compiler) -> None:
    lost = compile_library("liblost.so", 'extern "C" int from_lost() { return 1; }')
    file = compile_library("user.so", 'extern "C" int from_lost(); int use() { return from_lost(); }', needs=[lost])
    lost.unlink()
    resolution = process().load(file)
    assert [library.name for library in resolution.missing] == ["liblost.so"]
    assert resolution.unresolved == ()
    assert resolution.undecided == 1
    assert not resolution.loads


def test_a_symbol_linked_against_a_missing_library_is_undecided_even_where_another_has_its_name(
    compile_library: Compiler,
) -> None:
    new = versioned(compile_library, "new", "V_1")
    source = 'extern "C" int at_V_1(); int use() { return at_V_1(); }'
    file = compile_library("user.so", source, needs=[new], soname="")
    new.unlink()
    namesake = compile_library("libother.so", 'extern "C" int at_V_1() { return 1; }', flags=["-Wl,--default-symver"])
    running = process()
    running.load(namesake, public=True)
    resolution = running.load(file)
    assert (resolution.unresolved, resolution.undecided) == ((), 1)


def test_loading_in_a_copy_leaves_the_process_as_it_was(compile_library: Compiler, folders: Path) -> None:
    running = process()
    before = [mapped.path for mapped in running.maps]
    running.copy().load(folders / "a/libinner.so")
    assert [mapped.path for mapped in running.maps] == before
    running.load(folders / "b/libinner.so")
    assert folders / "b/libinner.so" in [mapped.path for mapped in running.maps]


def test_a_file_that_is_not_there_is_an_error_not_a_crash(tmp_path: Path) -> None:
    resolution = process().load(tmp_path / "absent.so")
    assert not resolution.loads
    assert resolution.errors == ((tmp_path / "absent.so", "No such file or directory"),)


def test_a_circle_of_needs_ends(compile_library: Compiler) -> None:
    first = compile_library("libfirst.so")
    second = compile_library("libsecond.so", needs=[first])
    first.unlink()
    first = compile_library("libfirst.so", needs=[second], flags=["-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"])
    assert process().load(first).loads


@pytest.mark.parametrize("path", real_libraries(200)[::9], ids=lambda path: path.name)
def test_real_libraries_load_as_the_machines_loader_loads_them(path: Path) -> None:
    running = process()
    resolution = running.load(path)
    error, mapped = really(path)
    if resolution.loads:
        assert error is None
        predicted = {mapped_file.path.resolve() for mapped_file in running.maps}
        assert predicted - {PYTHON.resolve()} <= mapped | {Path(os.path.realpath(p)) for p in mapped}
    else:
        assert error is not None


@pytest.mark.slow
def test_the_libraries_of_torch_are_those_in_a_process_that_imported_it() -> None:
    folder = SITE / "torch"
    if not folder.is_dir():
        pytest.skip("torch is not installed")
    running = process()
    assert running.load(folder / "lib/libtorch_global_deps.so", public=True).loads
    assert running.load(next(folder.glob("_C.*.so"))).loads
    code = "import torch; print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    real = {os.path.realpath(line.split(None, 5)[5]) for line in done.stdout.splitlines() if ".so" in line}
    predicted = {os.path.realpath(mapped.path) for mapped in running.maps}
    assert predicted - {str(PYTHON.resolve())} <= real


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_trees_of_libraries_resolve_as_the_machines_loader_resolves_them(tmp_path: Path, seed: int) -> None:
    if shutil.which("ld") is None or shutil.which("g++") is None:
        pytest.skip("there is no linker here")
    dice = random.Random(seed)
    empty = tmp_path / "empty.o"
    subprocess.run(["g++", "-c", "-x", "c", "/dev/null", "-o", empty], check=True)
    places = [tmp_path / name for name in "abc"]
    library_path = ":".join(str(place) for place in places if dice.random() < 0.4) or None
    for level in range(4, -1, -1):
        names = [f"lib{level}.so"] if level else ["top.so"]
        for place in places if level else [tmp_path]:
            if level and dice.random() < 0.3 and place is not places[0]:
                continue
            place.mkdir(exist_ok=True)
            needs = [places[0] / f"lib{below}.so" for below in range(level + 1, 5) if dice.random() < 0.6]
            kind = dice.choice(["none", "disable", "enable"])
            path = ":".join(
                str(p) if dice.random() < 0.5 else f"$ORIGIN/../{p.name}" for p in places if dice.random() < 0.6
            )
            flags = ["-rpath", path or "/nowhere", f"--{kind}-new-dtags"] if kind != "none" else []
            argv = ["ld", "-shared", "--no-as-needed", "--allow-shlib-undefined", *flags, "-o", place / names[0], empty]
            subprocess.run([*argv, "-soname", names[0], *needs, "-rpath-link", places[0]], check=True)
    running = process(library_path)
    resolution = running.load(tmp_path / "top.so")
    error, mapped = really(tmp_path / "top.so", library_path=library_path)
    assert resolution.loads is (error is None), (resolution, error)
    if resolution.loads:
        ours = {os.path.realpath(m.path) for m in running.maps if tmp_path in m.path.parents}
        assert ours == {os.path.realpath(path) for path in mapped if tmp_path in path.parents}
    else:
        assert any(library.name in str(error) for library in resolution.missing)
