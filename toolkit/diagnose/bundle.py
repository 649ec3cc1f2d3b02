"""A bug report as one archive: the log, the diagnosis, plan, host and versions, without secrets."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.diagnose.redact import redact, redact_document
from toolkit.errors import ToolkitError

MAX_LOG_BYTES = 32 * 1024**2
_CUT = "[{count} bytes left out here]\n"


def write(path: Path, log: bytes, documents: Mapping[str, Any], names: Sequence[str] = ()) -> list[str]:
    """The names of the files in the archive, which appears at ``path`` whole and readable by its owner only.

    ``documents``: JSON values by file name without ending; None ones are left out. ``names`` are removed everywhere.

    Raises: ToolkitError when it cannot be written there.
    """
    files = {"log.txt": redact(_shortened(log), names).encode()}
    for name, value in documents.items():
        if value is not None:
            text = json.dumps(redact_document(value, names), indent=2, ensure_ascii=False)
            files[f"{name}.json"] = text.encode()
    try:
        _publish(path, _archive(files))
    except OSError as error:
        hint = "Give a file in a folder that you may write to."
        raise ToolkitError(f"cannot write it: {error.strerror}", str(path), hint, code="bundle") from error
    return list(files)


def _shortened(log: bytes) -> str:
    """The log; of a very long one its first quarter and its last three."""
    if len(log) <= MAX_LOG_BYTES:
        return log.decode(errors="replace")
    head = log[: MAX_LOG_BYTES // 4]
    tail = log[-(MAX_LOG_BYTES - len(head)) :]
    cut = _CUT.format(count=len(log) - len(head) - len(tail))
    return head.decode(errors="replace") + "\n" + cut + tail.decode(errors="replace")


def _archive(files: Mapping[str, bytes]) -> bytes:
    """The archive; owner and times of its members are nobody's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"coexist-report/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _publish(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
