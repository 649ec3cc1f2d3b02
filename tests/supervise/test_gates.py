from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from toolkit.supervise import gates
from toolkit.supervise.gates import Gate
from toolkit.supervise.lifecycle import Ending, Failure, FailureRecord, Instance, State, step
from toolkit.supervise.lifecycle.events import Begin, Blocked

GPU = frozenset({"GPU-a"})


def instances(**states: str) -> dict[str, Instance]:
    """``waits`` is INIT before its gates have opened, ``up`` SERVING with its first request measured."""
    made = {}
    for name, state in states.items():
        plain = Instance(name)
        failure = FailureRecord(Failure("no weights"), 1, State.PRELOAD, 0.0)
        made[name] = {
            "waits": plain,
            "up": replace(plain, state=State.SERVING, begun=True, measured=True),
        }.get(state) or replace(plain, state=State(state), begun=True, last_failure=failure)
    return made


def starts(all_gates: list[Gate], found: dict[str, Instance]) -> list[tuple[str, type]]:
    """Everything that is decided until there is nothing more to decide."""
    decided = []
    while (start := gates.next_start(all_gates, found)) is not None:
        name, event = start
        found[name], _ = step(found[name], event, 0.0)
        decided.append((name, type(event)))
    return decided


def test_independent_services_begin_at_once() -> None:
    assert starts([Gate("a"), Gate("b")], instances(a="waits", b="waits")) == [("a", Begin), ("b", Begin)]


def test_after_waits_until_the_other_serves_and_was_measured() -> None:
    both = [Gate("llm"), Gate("embed", after=("llm",))]
    for state in ("INIT", "PRELOAD", "PRIME", "SERVING", "DRAINING", "BACKOFF", "STOPPED"):
        assert starts(both, instances(llm=state, embed="waits")) == []
    assert starts(both, instances(llm="up", embed="waits")) == [("embed", Begin)]


def test_a_failed_dependency_stops_the_whole_chain_with_the_reason() -> None:
    chain = [Gate("llm"), Gate("embed", after=("llm",)), Gate("rerank", after=("embed",))]
    found = instances(llm="FAILED", embed="waits", rerank="waits")
    assert starts(chain, found) == [("embed", Blocked), ("rerank", Blocked)]
    record = found["rerank"].last_failure
    assert record is not None
    assert record.failure.summary == (
        "not started, because 'embed' failed: not started, because 'llm' failed: no weights"
    )


def test_sharers_of_a_gpu_start_one_after_another_by_wave() -> None:
    both = [Gate("second", devices=GPU, wave=1), Gate("first", devices=GPU, wave=0)]
    assert starts(both, instances(first="waits", second="waits")) == [("first", Begin)]
    for state in ("INIT", "PRELOAD", "PRIME", "SERVING", "DRAINING", "BACKOFF"):
        assert starts(both, instances(first=state, second="waits")) == []
    assert starts(both, instances(first="up", second="waits")) == [("second", Begin)]


def test_a_sharer_that_gave_up_holds_nobody_back() -> None:
    both = [Gate("first", devices=GPU, wave=0), Gate("second", devices=GPU, wave=1)]
    for state in ("FAILED", "STOPPED"):
        assert starts(both, instances(first=state, second="waits")) == [("second", Begin)]


def test_a_restart_waits_while_a_later_sharer_is_in_the_middle_of_its_start() -> None:
    both = [Gate("first", devices=GPU, wave=0), Gate("second", devices=GPU, wave=1)]
    for state in ("PRELOAD", "PRIME", "DRAINING"):
        assert starts(both, instances(first="waits", second=state)) == []
    assert starts(both, instances(first="waits", second="up")) == [("first", Begin)]


def test_services_on_different_gpus_do_not_wait_for_waves() -> None:
    both = [Gate("a", devices=GPU, wave=0), Gate("b", devices=frozenset({"GPU-b"}), wave=1)]
    assert starts(both, instances(a="waits", b="waits")) == [("a", Begin), ("b", Begin)]


def test_who_is_waited_for_is_named_once() -> None:
    both = [Gate("llm", devices=GPU), Gate("embed", after=("llm",), devices=GPU, wave=1)]
    assert gates.waiting_for("embed", both, instances(llm="PRIME", embed="waits")) == ("llm",)
    assert gates.waiting_for("embed", both, instances(llm="PRIME", embed="PRELOAD")) == ()


def test_stops_go_in_reverse_order_of_dependence() -> None:
    chain = [Gate("llm"), Gate("embed", after=("llm",)), Gate("rerank", requires=("embed",))]
    assert gates.next_stops(chain, instances(llm="up", embed="up", rerank="up")) == ("rerank",)
    assert gates.next_stops(chain, instances(llm="up", embed="up", rerank="STOPPED")) == ("embed",)
    assert gates.next_stops(chain, instances(llm="up", embed="FAILED", rerank="STOPPED")) == ("llm",)


def test_what_stops_already_is_not_asked_again_but_what_would_retry_is() -> None:
    found = instances(a="DRAINING")
    found["a"] = replace(found["a"], ending=Ending("retry", State.PRIME))
    assert gates.next_stops([Gate("a")], found) == ("a",)
    found["a"] = replace(found["a"], ending=Ending("stop", State.PRIME))
    assert gates.next_stops([Gate("a")], found) == ()


def test_a_circle_of_requirements_can_still_be_stopped() -> None:
    circle = [Gate("a", requires=("b",)), Gate("b", requires=("a",))]
    assert gates.next_stops(circle, instances(a="up", b="up")) == ("a", "b")


def test_requires_withdraws_readiness_and_nothing_else() -> None:
    both = [Gate("llm"), Gate("embed", requires=("llm",))]
    found = instances(llm="BACKOFF", embed="up")
    assert not gates.is_ready("embed", both, found)
    assert gates.is_ready("embed", both, instances(llm="up", embed="up"))
    assert starts(both, instances(llm="BACKOFF", embed="waits")) == [("embed", Begin)]


def test_only_required_services_decide_readiness() -> None:
    both = [Gate("llm"), Gate("extra", required=False)]
    assert gates.all_ready(both, instances(llm="up", extra="FAILED"))
    assert not gates.all_ready(both, instances(llm="PRIME", extra="up"))


@given(st.lists(st.tuples(st.sampled_from(["", "GPU-a", "GPU-b"]), st.integers(0, 3)), min_size=1, max_size=6))
def test_at_most_one_sharer_of_a_gpu_is_in_its_start(drawn: list[tuple[str, int]]) -> None:
    all_gates = [
        Gate(f"s{i}", devices=frozenset(filter(None, [gpu])), wave=wave) for i, (gpu, wave) in enumerate(drawn)
    ]
    found = {gate.name: Instance(gate.name) for gate in all_gates}
    begun = [name for name, _ in starts(all_gates, found)]
    on_gpus = [device for gate in all_gates if gate.name in begun for device in gate.devices]
    assert len(on_gpus) == len(set(on_gpus))
    assert begun
