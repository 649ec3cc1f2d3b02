"""The folder for what lives only while this host is up: the ledger of grants and the start locks."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.files import unusable_folder


def runtime_dir(environ: Mapping[str, str] = os.environ, uid: int | None = None, root: Path = Path("/")) -> Path:
    """The folder, made if it was not there; all shells of a user find the same one.

    ``COEXIST_RUNTIME_DIR``; for root ``/run/coexist``; else ``coexist`` in the user's XDG runtime folder; else
    ``/tmp/coexist-UID``. One that others could have planted or can write is refused; a chosen one may be a group's.

    Raises: ToolkitError when the folder is not safe, or cannot be made.
    """
    user = os.geteuid() if uid is None else uid
    if chosen := environ.get("COEXIST_RUNTIME_DIR"):
        return _made(Path(chosen).expanduser().absolute(), user, mode=0o700, chosen=True)
    if user == 0 and os.access(root / "run", os.W_OK):
        return _made(root / "run/coexist", user, mode=0o755)
    if home := _session_dir(environ, user, root):
        return _made(home / "coexist", user, mode=0o700)
    return _made(root / f"tmp/coexist-{user}", user, mode=0o700)


def _session_dir(environ: Mapping[str, str], user: int, root: Path) -> Path | None:
    """The XDG runtime folder, also in shells that were not told of it (cron, some ssh sessions)."""
    candidates = [Path(environ.get("XDG_RUNTIME_DIR") or root / f"run/user/{user}"), root / f"run/user/{user}"]
    return next((path for path in candidates if path.is_dir() and path.stat().st_uid == user), None)


def _made(path: Path, user: int, mode: int, chosen: bool = False) -> Path:
    try:
        path.mkdir(mode=mode, parents=chosen)
    except FileExistsError:
        _refuse_unsafe(path, user, chosen)
    except OSError as error:
        raise unusable_folder(path, error, "COEXIST_RUNTIME_DIR") from error
    return path


def _refuse_unsafe(path: Path, user: int, chosen: bool) -> None:
    status = path.lstat()
    others_may_write = 0o002 if chosen else 0o022
    if not chosen and stat.S_ISLNK(status.st_mode):
        problem = "is a symbolic link"
    elif not path.is_dir():
        problem = "is not a folder"
    elif not chosen and status.st_uid != user:
        problem = f"belongs to user {status.st_uid}, not to user {user}"
    elif path.stat().st_mode & others_may_write:
        problem = "can be written by others"
    else:
        return
    raise ToolkitError(
        f"{problem}, so its reservations cannot be trusted",
        str(path),
        "Remove it, or set COEXIST_RUNTIME_DIR to a folder of your own.",
        code="runtime_dir_unsafe",
    )
