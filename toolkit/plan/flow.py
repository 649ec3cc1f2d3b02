"""Maximum flow from demands to regions that each can use some of: who gets how much from where."""

from __future__ import annotations

from collections.abc import Sequence


def route(demands: Sequence[tuple[int, Sequence[int]]], capacity: Sequence[int]) -> list[list[int]]:
    """Units that each demand gets from each region, as many in all as can be.

    ``demands``: wanted units and the regions that may give them, in order of preference. Earlier demands keep what
    they got; where it came from may change.
    """
    left = list(capacity)
    sent = [[0] * len(left) for _ in demands]
    for i, (wanted, _) in enumerate(demands):
        missing = wanted
        while missing > 0 and (moves := _path(i, demands, sent, left)):
            missing -= _push(moves, missing, sent, left)
    return sent


Moves = list[tuple[int, int]]  # (demand, region it draws from next); every move but the last displaces another


def _path(start: int, demands: Sequence[tuple[int, Sequence[int]]], sent: list[list[int]], left: list[int]) -> Moves:
    """A shortest chain of moves from a demand to a region with something left; empty: there is none."""
    reached: set[int] = set()
    frontier: list[Moves] = [[(start, region)] for region in demands[start][1]]
    while frontier:
        following: list[Moves] = []
        for moves in frontier:
            region = moves[-1][1]
            if region in reached:
                continue
            reached.add(region)
            if left[region] > 0:
                return moves
            for j, (_, regions) in enumerate(demands):
                if sent[j][region] > 0:
                    following += [[*moves, (j, other)] for other in regions if other not in reached]
        frontier = following
    return []


def _push(moves: Moves, wanted: int, sent: list[list[int]], left: list[int]) -> int:
    """Units moved along the chain: no more than wanted, left at its end, or held by whoever is displaced."""
    held = [sent[moves[k + 1][0]][moves[k][1]] for k in range(len(moves) - 1)]
    amount = min([wanted, left[moves[-1][1]], *held])
    for k, (demand, region) in enumerate(moves):
        sent[demand][region] += amount
        if k + 1 < len(moves):
            sent[moves[k + 1][0]][region] -= amount
    left[moves[-1][1]] -= amount
    return amount
