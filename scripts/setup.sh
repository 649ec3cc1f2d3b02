#!/usr/bin/env bash
# Makes .venv for 'run' (coexist, its servers, the model converter) or 'dev' (that, and everything the tests need).
# Says everything on standard error. Running it again is a matter of milliseconds: a stamp holds what was installed.
set -euo pipefail
cd "$(dirname "$0")/.."
exec >&2

venv=.venv
case "${1:-}" in
  run) extras=serve,models ;;
  dev) extras=dev ;;
  *) echo "usage: scripts/setup.sh run|dev"; exit 2 ;;
esac

die() { printf 'error: %s\n' "$1"; shift; printf '  %s\n' "$@"; exit 1; }

# What an installation depends on: these files, the folder (scripts in .venv name it), and the interpreter.
key_of() { { pwd; cat pyproject.toml requirements/*.txt "$venv/pyvenv.cfg" 2>/dev/null || true; } | sha256sum | cut -d" " -f1; }

installed() {
  local stamp
  for stamp in "$venv/.installed-dev" "$venv/.installed-$1"; do
    [[ -x $venv/bin/coexist && -f $stamp && $(<"$stamp") == "$(key_of)" ]] && return 0
  done
  return 1
}

check_compiler() {
  command -v "${CXX:-g++}" >/dev/null || die "no C++ compiler: '${CXX:-g++}' is not on PATH; engines are compiled with it." \
    "Debian, Ubuntu: apt-get install g++    Fedora: dnf install gcc-c++    or set CXX."
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
  local candidate
  if [[ -n ${PYTHON:-} ]]; then
    command -v "$PYTHON" >/dev/null || die "PYTHON=$PYTHON is not a program."
    new_enough "$PYTHON" || die "PYTHON=$PYTHON is not Python 3.10 or newer: $("$PYTHON" --version 2>&1)"
    python=$PYTHON
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    if command -v "$candidate" >/dev/null && new_enough "$candidate"; then python=$candidate; return; fi
  done
  die "Python 3.10 or newer was not found (python3 is $(python3 --version 2>&1 || true))." \
    "Install one, or say which: make PYTHON=/path/to/python3.12 …"
}

make_venv() {
  if [[ -x $venv/bin/python ]] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  find_python
  "$python" -c 'import venv, ensurepip' 2>/dev/null || die "$python has no venv module." \
    "Debian, Ubuntu: apt-get install python3-venv    or take another: make PYTHON=/path/to/python3.12 …"
  echo "creating $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
}

install_into_venv() {
  local version lock
  version=$("$venv/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  lock=requirements/lock-py$version.txt
  local constraint=()
  if [[ -f $lock ]]; then constraint=(-c "$lock"); fi
  echo "installing trtllm-coexist[$extras] into $venv ${constraint:+with the versions of $lock}"
  "$venv/bin/python" -m pip install --disable-pip-version-check "${constraint[@]}" -e ".[$extras]" || die \
    "pip could not install the dependencies; its own words are above." \
    "Check the network and 'pip config list', then run the same command again: what was loaded is kept."
}

if installed "$1"; then exit 0; fi
exec 9<scripts
if command -v flock >/dev/null; then flock 9; fi # two at once: the second finds the work done
if installed "$1"; then exit 0; fi
check_compiler
make_venv
install_into_venv
key_of >"$venv/.installed-$1.new"
mv "$venv/.installed-$1.new" "$venv/.installed-$1"
