from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.diagnose.needles import Needles
from toolkit.diagnose.stream import MAX_LINE_BYTES, Scanner

NEEDLES = Needles({0: ["error"], 1: ["error code", "crash"]})


def read(*pieces: bytes) -> list[tuple[int, bytes]]:
    return [(line.number, line.data) for line in Scanner(pieces, NEEDLES)]


def test_only_lines_that_hold_a_needle_come_with_their_numbers() -> None:
    assert read(b"fine\nan ERROR here\nfine\ncrash") == [(2, b"an ERROR here"), (4, b"crash")]


def test_a_carriage_return_ends_no_line_and_colours_go() -> None:
    assert read(b"1%\r2%\r\x1b[31merror\x1b[0m\nnext error") == [(1, b"1%\r2%\rerror"), (2, b"next error")]


def test_lines_of_a_boring_shape_are_not_looked_at_again() -> None:
    scanner = Scanner([b"error 1 of 5 things\nerror 22 of 7 things\nerror 803\nerror 804\n"], NEEDLES)
    seen = []
    for line in scanner:
        seen.append(line.number)
        scanner.mark_boring(line)
    assert seen == [1, 2, 3, 4]  # numbers beside these words tell something
    scanner = Scanner([b"a crash at 12:01\na crash at 12:02\n"], NEEDLES)
    seen = []
    for line in scanner:
        seen.append(line.number)
        scanner.mark_boring(line)
    assert seen == [1]


def test_a_needle_is_found_wherever_a_very_long_line_is_cut() -> None:
    for at in (0, MAX_LINE_BYTES - 3, MAX_LINE_BYTES, 2 * MAX_LINE_BYTES + 5):
        found = read(b"x" * at + b"crash" + b"y" * 2_000_000, b"\ncrash")
        assert {number for number, _ in found} == {1, 2}


def test_the_tail_keeps_its_line_numbers() -> None:
    scanner = Scanner([b"line\n" * 100_000, b"last"], NEEDLES)
    assert list(scanner) == []
    assert (scanner.tail()[-1].number, scanner.tail()[-1].data) == (100_001, b"last")
    assert sum(len(line.data) for line in scanner.tail()) < 64 * 1024


@given(st.lists(st.sampled_from([b"fine", b"error", b"a crash", b"", b"\xff\xfe"]), max_size=40), st.integers(1, 9))
def test_numbers_do_not_depend_on_the_pieces(lines: list[bytes], size: int) -> None:
    log = b"\n".join(lines)
    pieces = [log[at : at + size] for at in range(0, len(log), size)]
    assert read(*pieces) == read(log)


def test_a_needle_within_another_one_finds_the_rules_of_both() -> None:
    assert NEEDLES.concerned(b"error code 2") == [0, 1]
    assert NEEDLES.concerned(b"errors") == [0]
    assert NEEDLES.concerned(b"nothing") == []
