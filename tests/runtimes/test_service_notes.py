from __future__ import annotations

from tests.runtimes.conftest import service
from toolkit.runtimes.service_notes import notes_of


def test_a_variable_that_pins_threads_is_told_and_no_other() -> None:
    asked = service(runtime="flash", model="m", env={"OMP_PROC_BIND": "close", "MY": "x"})
    assert notes_of(asked) == ("env: OMP_PROC_BIND may fight the planned CPU mask",)


def test_a_service_that_others_can_reach_is_told() -> None:
    assert notes_of(service(runtime="flash", model="m")) == ()
    (note,) = notes_of(service(runtime="flash", model="m", host="0.0.0.0"))
    assert note == "listens on '0.0.0.0': whoever reaches this machine can use it"
