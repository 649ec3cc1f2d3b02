"""The fault table: one row for each fault, what is done, and what becomes of the deployment.

``tests/faults/test_faults.py`` runs each row on real processes and asserts the invariants after it.
``docs/supervision.md`` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.faults import ends, injections, services
from tests.faults.ends import Before
from tests.faults.services import MANY
from tests.supervise.conftest import HELLO
from toolkit.config.models import Restart
from toolkit.runtimes.base import HttpProbe
from toolkit.supervise.supervisor import OnDeath

if TYPE_CHECKING:
    from tests.faults.scene import Scene

TWICE = Restart(max_restarts=2, window="10min")
SMALL_WINDOW_S = 1.5
DEEP_S = 0.5


@dataclass(frozen=True)
class Fault:
    """A row. ``outcome`` is for readers; ``end`` checks it, with ``reason`` (a pattern) told for ``stage``.

    ``strikes``: while all serve, or while they start. ``flags`` are those of the tiny server that is ``victim``.
    ``groups``: with control groups, where the machine has them.
    """

    name: str
    outcome: str
    end: Callable[[Scene, Fault, Before], None]
    inject: Callable[[Scene], None] = injections.nothing
    strikes: Literal["serving", "start"] = "serving"
    reason: str = ""
    stage: str = "SERVING"
    attempt: int = 2
    any_attempt: bool = False
    victim: str = "web"
    flags: tuple[str, ...] = ()
    argv: Callable[[Sequence[str]], Sequence[str]] = services.as_it_is
    prepare: Callable[[Scene], None] = injections.nothing
    needs: Callable[[], bool] = lambda: True
    restart: Restart = MANY
    first_window_s: float = 60.0
    canary: HttpProbe = HELLO
    deep_s: float = 30.0
    on_gpu: bool = False
    groups: bool = True
    on_death: OnDeath = "kill"


STANDS_STILL = "^no progress for .* its log, memory, files and processors stand still"
KILLED = "^was killed by SIGKILL"
GAVE_UP = "^gave up after 2 restarts within 600 s: "

TABLE = (
    # While it serves.
    Fault("kill -9 of a server", "replaced", ends.replaced, injections.kill_server, reason=KILLED),
    Fault(
        "a server crashes", "replaced; its exit status and last words are told", ends.replaced, injections.crash,
        reason="^exited with status 7",
    ),
    Fault(
        "a server hangs (SIGSTOP)", "three deep probes without an answer or progress, then replaced", ends.replaced,
        injections.stop_server, reason="^no answer and no progress over 3 deep probes", deep_s=DEEP_S,
    ),
    Fault(
        "it answers 503 for ever", "three liveness probes, then replaced", ends.replaced, injections.turn_mute,
        reason="^3 liveness probes in a row failed: GET /health: 503",
    ),
    Fault(
        "it answers 200 with a wrong answer", "three deep probes, then replaced", ends.replaced, injections.babble,
        reason="^3 deep probes in a row failed: .*hello", deep_s=DEEP_S,
    ),
    Fault(
        "kill -9 of a rank behind a front end that lives on", "replaced; the rank is named", ends.replaced,
        injections.kill_rank, flags=("1:ranks",), reason=r"^rank 1 \(pid \d+\) died: signal 9",
    ),
    Fault(
        "kill -9 of a rank of mpirun", "replaced; the rank is the reason, the end of mpirun its consequence",
        ends.replaced, injections.kill_rank, flags=("rank-0-serves",), argv=services.below_mpirun,
        reason=r"^rank 1 \(pid \d+\) died: signal 9",
    ),
    Fault(
        "kill -9 of mpirun", "its ranks are gone before it is replaced", ends.replaced, injections.kill_mpirun,
        flags=("rank-0-serves",), argv=services.below_mpirun, reason=KILLED,
    ),
    Fault(
        "kill -9 of a server whose grandchild (setsid, ignores TERM) holds the port",
        "the grandchild is gone and the port free before it is replaced", ends.replaced, injections.kill_server,
        flags=("port-holder",), reason=KILLED,
    ),
    Fault(
        "the same without control groups", "the same", ends.replaced, injections.kill_server,
        flags=("port-holder",), reason=KILLED, groups=False,
    ),
    Fault(
        "it ignores TERM", "killed with all its processes after `grace`", ends.replaced, injections.restart,
        flags=("ignore-term", "port-holder"),
    ),
    Fault(
        "its log floods", "it is never made to wait; the log is rotated; the supervisor answers", ends.untouched,
        injections.flood,
    ),
    Fault(
        "the date jumps by a year, forth and back", "replaced as ever; dates of events go on", ends.replaced,
        injections.move_the_date, reason=KILLED, attempt=3,
    ),
    # While it starts.
    Fault(
        "INIT: the program is not there", "given up at once", ends.given_up, reason="^cannot start '/nowhere/at/all'",
        argv=services.not_there, strikes="start", stage="PRELOAD", attempt=1,
    ),
    Fault(
        "INIT: whoever starts on its GPU hangs, then is killed", "waits, saying for whom; then starts", ends.replaced,
        injections.kill_gpu_start_holder, prepare=injections.hold_gpu_start, on_gpu=True, strikes="start", attempt=1,
    ),
    Fault(
        "PRELOAD: exits with status 0", "tried again, then given up", ends.given_up, flags=("exit-zero",),
        reason=GAVE_UP + "exited with status 0", restart=TWICE, strikes="start", stage="PRELOAD", attempt=3,
    ),
    Fault(
        "PRELOAD: crashes each time", "tried again, then given up with its last words", ends.given_up,
        flags=("exit-early",), reason=GAVE_UP + "exited with status 3; .*no such weights", restart=TWICE,
        strikes="start", stage="PRELOAD", attempt=3,
    ),
    Fault(
        "PRELOAD: crashes once", "the next attempt serves", ends.replaced, flags=("1:exit-early",),
        reason="^exited with status 3", strikes="start", stage="PRELOAD",
    ),
    Fault(
        "PRELOAD: hangs", "ended once nothing has moved for a while; the next attempt serves", ends.replaced,
        flags=("1:hang",), reason=STANDS_STILL, first_window_s=0.3, strikes="start", stage="PRELOAD",
    ),
    Fault(
        "PRIME: crashes", "the next attempt serves", ends.replaced, flags=("1:crash-on-hello",),
        reason="^exited with status 7", strikes="start", stage="PRIME",
    ),
    Fault(
        "PRIME: hangs", "ended once nothing has moved for a while; the next attempt serves", ends.replaced,
        flags=("1:hang-on-hello",), reason=STANDS_STILL, first_window_s=SMALL_WINDOW_S, strikes="start", stage="PRIME",
    ),
    Fault(
        "PRIME: the canary is wrong", "given up at once: it would be wrong again", ends.given_up,
        canary=HttpProbe("/hello", expect_text="goodbye"), reason="goodbye", strikes="start", stage="PRIME", attempt=1,
    ),
    Fault(
        "a port is taken between the plan and the first start", "given up, naming who has it; the others serve",
        ends.given_up, injections.take_port_of_dependant, flags=("wait-for={folder}/gate",), victim="behind",
        reason=r"^port \d+ of 'behind' is in use by .*\(pid \d+\)", strikes="start", stage="INIT", attempt=1,
    ),
    Fault(
        "a port is taken between the last test of it and the server's bind",
        "tried again until it is free, naming who has it", ends.replaced, injections.take_port_before_bind,
        flags=("1:wait-for={folder}/gate",), reason=r"^port \d+ of 'web' is in use by ",
        strikes="start", stage="INIT", attempt=3, any_attempt=True,
    ),
    # The world of the supervisor.
    Fault(
        "the disk of the state folder is full, and a server is killed", "replaced once there is room; no event is lost",
        ends.replaced, injections.fill_disk, prepare=injections.on_a_small_disk, needs=injections.can_mount,
        reason="^(exited|was killed)", stage="SERVING|PRELOAD", any_attempt=True,
    ),
    Fault(
        "no file may grow (RLIMIT_FSIZE), and a server is killed", "replaced once it may; no event is lost",
        ends.replaced, injections.forbid_writing, reason="^(exited|was killed)", stage="SERVING|PRELOAD",
        any_attempt=True,
    ),
    Fault(
        "kill -9 of one guardian", "another one takes its place; services are not touched", ends.untouched,
        injections.kill_first_guardian,
    ),
    Fault("kill -9 of the other guardian", "the same", ends.untouched, injections.kill_second_guardian),
    Fault("kill -9 of both guardians", "the same", ends.untouched, injections.kill_guardians),
    Fault(
        "kill -9 of the supervisor", "nothing is left; the next `up` starts everything", ends.all_gone,
        injections.kill_supervisor, flags=("port-holder",),
    ),
    Fault(
        "kill -9 of the supervisor, without control groups", "the same", ends.all_gone,
        injections.kill_supervisor, flags=("port-holder",), groups=False,
    ),
    Fault(
        "kill -9 of the supervisor, then of a guardian", "the same", ends.all_gone,
        injections.kill_supervisor_then_guardian, flags=("port-holder",),
    ),
    Fault(
        "kill -9 of a guardian, then of the supervisor", "the same", ends.all_gone,
        injections.kill_guardian_then_supervisor, flags=("port-holder",),
    ),
    Fault(
        "kill -9 of the supervisor and both guardians", "the same: the kernel ends what was started", ends.all_gone,
        injections.kill_supervisor_and_guardians,
    ),
    Fault(
        "kill -9 of the supervisor, `on_supervisor_death: keep`", "services run on; the next `up` takes them over",
        ends.taken_over, injections.kill_supervisor, flags=("port-holder",), on_death="keep",
    ),
)  # fmt: skip

BY_NAME = {fault.name: fault for fault in TABLE}
# Faults that other tests bring about, by the place of the test.
ELSEWHERE = {
    "200 starts and stops": (
        "no descriptor, process, thread or memory leaks", "tests/supervise/test_cycles.py",
    ),
    "`restart` or `stop` of a built-in server with requests in flight": (
        "every one of them is answered", "tests/faults/test_drain.py",
    ),
}  # fmt: skip


def markdown() -> str:
    """The table as the documentation has it."""
    rows = [(fault.name, fault.outcome) for fault in TABLE]
    rows += [(name, outcome) for name, (outcome, _) in ELSEWHERE.items()]
    return "\n".join(["| fault | what becomes of it |", "|---|---|", *(f"| {name} | {said} |" for name, said in rows)])
