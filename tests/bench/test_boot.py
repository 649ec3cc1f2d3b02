"""What was measured of a service that did not serve to the end says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.bench.boot import check_served
from toolkit.errors import ToolkitError

LOGS = Path("/state/logs")
FAILURE = {"summary": "exited with status 9"}


def status(state="SERVING", attempt=1, failure=None, ready=True):
    service = {"name": "llm", "state": state, "attempt": attempt, "last_failure": failure}
    return {"deployment": "d", "ready": ready, "services": [service]}


def refusal(ready, ended):
    with pytest.raises(ToolkitError) as caught:
        check_served(ready, ended, LOGS)
    return caught.value


def test_who_serves_to_the_end_is_measured():
    check_served(status(), status(), LOGS)
    check_served(status(attempt=2, failure=FAILURE), status(attempt=2, failure=FAILURE), LOGS)


def test_a_service_that_need_not_serve_is_not_asked_for():
    check_served(status("FAILED"), status("FAILED"), LOGS)


def test_a_start_that_somebody_stopped_is_no_start():
    assert refusal(status("STOPPED", ready=False), status("STOPPED")).code == "stopped"


@pytest.mark.parametrize("ended", [status("BACKOFF", 1, FAILURE), status("SERVING", 2, FAILURE)])
def test_a_service_that_ended_under_its_load_is_told_with_the_reason(ended):
    error = refusal(status(), ended)
    assert error.what == "'llm' did not serve to the end of its load: exited with status 9"
    assert error.where == "/state/logs/llm.log"


def test_a_service_that_a_person_stopped_has_no_reason_to_tell():
    error = refusal(status(failure=FAILURE), status("STOPPED", failure=FAILURE))
    assert error.what == "'llm' did not serve to the end of its load"
