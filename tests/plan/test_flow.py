from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.plan.flow import route

REGIONS = 3
DEMANDS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(0, REGIONS - 1), unique=True)), min_size=1, max_size=5
)
CAPACITY = st.lists(st.integers(0, 6), min_size=REGIONS, max_size=REGIONS)


def least_cut(demands: list[tuple[int, list[int]]], capacity: list[int]) -> int:
    """The maximum flow by its theorem: for some set of demands, all others and every region that the set may use."""
    every = range(len(demands))
    sets = chain.from_iterable(combinations(every, n) for n in range(len(demands) + 1))
    return min(
        sum(demands[i][0] for i in every if i not in chosen)
        + sum(capacity[r] for r in {r for i in chosen for r in demands[i][1]})
        for chosen in sets
    )


@given(DEMANDS, CAPACITY)
def test_as_much_is_routed_as_can_be_and_only_where_it_may_go(
    demands: list[tuple[int, list[int]]], capacity: list[int]
):
    sent = route(demands, capacity)
    assert sum(map(sum, sent)) == least_cut(demands, capacity)
    for (wanted, allowed), row in zip(demands, sent, strict=True):
        assert sum(row) <= wanted
        assert all(n >= 0 and (n == 0 or r in allowed) for r, n in enumerate(row))
    assert all(sum(row[r] for row in sent) <= capacity[r] for r in range(REGIONS))


def test_the_first_region_named_is_used_first():
    assert route([(3, [1, 0])], [5, 2]) == [[1, 2]]
