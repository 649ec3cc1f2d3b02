from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.supervise.changes import OF_THE_SUPERVISOR, Changes, compare, same_process

WEB = {"argv": "1", "port": "2", "grace": "3"}


def test_the_difference_tells_services_and_keys() -> None:
    running = {"web": WEB, "embed": WEB, "old": WEB, "still": WEB, "rests": WEB}
    wanted = {
        "new": WEB,
        "web": {**WEB, "argv": "9", "env": "8"},
        "embed": {**WEB, "grace": "9"},
        "still": WEB,
        "rests": WEB,
    }
    assert compare(running, wanted, resting={"rests"}) == Changes(
        added=("new",),
        removed=("old",),
        changed={"web": ("argv", "env")},
        applied={"embed": ("grace",)},
        started=("rests",),
        unchanged=("still",),
    )


def test_a_change_that_concerns_only_the_supervisor_needs_no_new_process() -> None:
    assert same_process(WEB, {**WEB, "grace": "9", "after": "x"})
    assert not same_process(WEB, {**WEB, "grace": "9", "port": "x"})
    assert not same_process(WEB, {"port": "2", "grace": "3"})


SPECS = st.dictionaries(
    st.sampled_from("abcd"),
    st.dictionaries(st.sampled_from(["argv", "port", *sorted(OF_THE_SUPERVISOR)]), st.sampled_from("12")),
)


@given(running=SPECS, wanted=SPECS, resting=st.sets(st.sampled_from("abcd")))
def test_every_service_is_in_one_list_and_only_what_differs_begins_anew(running, wanted, resting) -> None:
    found = compare(running, wanted, resting)
    stays = {*found.unchanged, *(found.applied.keys() - set(found.started))}
    anew = {*found.added, *found.changed, *found.started}
    assert stays | anew == set(wanted)
    assert not stays & anew
    assert set(found.removed) == running.keys() - wanted.keys()
    assert all(same_process(running[name], wanted[name]) and name not in resting for name in stays)
