"""``up`` on a deployment that runs already: it shows the difference, and follows until what is new is ready."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit import workflow
from toolkit.cli import deadline, heartbeat, output
from toolkit.config.load import LoadedDeployment
from toolkit.errors import NotReadyInTimeError
from toolkit.home import Home
from toolkit.supervise import client
from toolkit.supervise.state import StateFolder
from toolkit.units import format_duration


def runs(deployment: LoadedDeployment, home: Home) -> bool:
    """Whether a supervisor of the deployment lives."""
    return StateFolder(home.state(deployment.model.name)).is_running()


def up(config: Path, deployment: LoadedDeployment, home: Home, timeout_s: float | None, as_json: bool) -> int:
    """The exit code, once the deployment that runs follows the file and is ready. It goes on whatever happens here.

    Raises: NotReadyInTimeError; ToolkitError.
    """
    started_s = time.monotonic()
    doing = heartbeat.Doing()
    with deadline.raises_after(timeout_s, _still_planning), heartbeat.beating(doing.text):
        changes = workflow.redeploy_running(config, home, output.say, doing.at)
    for line in difference(changes):
        output.say(line)
    left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started_s))
    doing.begin(f"waiting until all of {deployment.model.name} is ready")
    with heartbeat.beating(doing.text):
        status = client.wait_ready(home.state(deployment.model.name), left_s)
    if as_json:
        output.document({**status, "changes": changes})
    else:
        output.line(f"ready: {status['control']}/readyz")
        output.line(
            f"{deployment.model.name} goes on where it was started. See 'coexist status'; 'coexist down' stops it."
        )
    return 0


def _still_planning(timeout_s: float) -> NotReadyInTimeError:
    what = f"not ready after {format_duration(timeout_s)}: its engines were still being made, or its plan"
    return NotReadyInTimeError(what, hint="See 'coexist status' for what runs.", code="not_ready")


def difference(changes: Mapping[str, Any]) -> Iterator[str]:
    """What is different, a line for each service, and one for those that stay."""
    yield from (f"{name}: new" for name in changes["added"])
    yield from (f"{name}: removed" for name in changes["removed"])
    yield from (f"{name}: restarts ({', '.join(keys)})" for name, keys in changes["changed"].items())
    yield from (f"{name}: runs on with other {', '.join(keys)}" for name, keys in changes["applied"].items())
    yield from (f"{name}: was at rest, starts again" for name in changes["started"])
    if changes["unchanged"]:
        yield f"unchanged: {', '.join(changes['unchanged'])}"
