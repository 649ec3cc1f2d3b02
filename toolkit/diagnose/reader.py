"""What a log says so far: findings, evidence, names, and how far the program came. Bounded, whatever the log's size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from toolkit.diagnose import text as texts
from toolkit.diagnose.catalogue import Catalogue, Evidence, Jit, Landmark, Mark, Pattern, Rule
from toolkit.diagnose.model import Context, Finding
from toolkit.diagnose.refine import REFINEMENTS, Refined, Scene, derived
from toolkit.diagnose.stream import OVERLAP_BYTES, RawLine, Scanner
from toolkit.diagnose.template import fill, known
from toolkit.diagnose.text import Level, Line

SEEK_LINES = 15
BELOW_LINES = 8
GLUE_LINES = 6
QUOTE_LINES = 40
LONG_BYTES = 64 * 1024
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_GOES_ON = re.compile(r"Exception ignored in|During handling of the above exception|direct cause of the following")
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")
TRACEBACK_LINES = 60
CHAINED_LINES = 2
_RANK_TAG = re.compile(r"\[\d+,(\d+)\]<std(?:out|err)>:")
_MAX_OPEN = 64
_SOFT = 2
MAX_ERRORS = 3


@dataclass(frozen=True)
class Sign:
    """Evidence or compiling that was seen: where, its text, and what was captured."""

    number: int
    text: str
    captures: dict[str, str | None] = field(default_factory=dict)


@dataclass
class _Aside:
    """A traceback that a warning tells: how serious that is, its last line, whether it, or another one, goes on."""

    level: Level
    number: int
    is_open: bool
    is_followed: bool = False


@dataclass
class State:
    """All that is remembered of the lines read. A new life of the program begins with a new one."""

    findings: dict[tuple[str, int], Finding] = field(default_factory=dict)
    evidence: dict[str, tuple[Sign, int]] = field(default_factory=dict)
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)
    ready: int | None = None
    shutdown: int | None = None
    unavailable: bool = False
    waits_for_lock: dict[str, Sign] = field(default_factory=dict)
    compiles: Sign | None = None
    stalled: int | None = None
    errors: list[Sign] = field(default_factory=list)


class Reader:
    """Reads the lines of a scanner into ``state``."""

    def __init__(self, catalogue: Catalogue, scanner: Scanner, context: Context) -> None:
        self._catalogue = catalogue
        self._scanner = scanner
        self._lines = iter(scanner)
        self._context = context
        self.state = State()
        self._cut: dict[str, tuple[int, str]] = {}
        self._quote: str | None = None
        self._quoted_lines = 0
        self._sought: tuple[Pattern, int] | None = None
        self._named_below: Landmark | None = None
        self._aside: _Aside | None = None

    def read(self) -> State:
        """Reads on to the end of the log, or to the next pause."""
        for raw in self._lines:
            if raw is None:
                break
            rules = list(self._catalogue.concerned(raw.low))
            told = (rules or self._is_watching or raw.low.count(b"]<std") > 1) and self._raw(raw, rules)
            if not told:
                self._scanner.mark_boring(raw)
        return self.state

    def _raw(self, raw: RawLine, rules: list[Rule]) -> bool:
        """Takes in a line as it was written; ``rules`` are those that it concerns as a whole."""
        told = False
        for number, text in self._whole(raw):
            joined = number != raw.number or len(text) > len(raw.data)
            own = self._catalogue.concerned(text.lower().encode()) if joined else rules
            line = self._as_told(texts.make(number, text))
            told |= self._line(line, own) or self._may_be_aside(line)
        return told

    @property
    def _is_watching(self) -> bool:
        """The next lines may go on with what was begun."""
        return bool(self._cut or self._quote or self._sought or self._named_below)

    def _whole(self, raw: RawLine) -> Iterator[tuple[int, str]]:
        """The line; where the output of ranks ran into one another, one text for each, joined to its other half."""
        if len(raw.data) > LONG_BYTES:
            yield from self._windows(raw)
            return
        text = self._unquoted(raw.text)
        tags = list(_RANK_TAG.finditer(text))
        if len(tags) < 2 and not (tags and tags[0][1] in self._cut):
            yield raw.number, text
            return
        if head := text[: tags[0].start()]:
            yield raw.number, head
        ends = [tag.start() for tag in tags[1:]] + [len(text)]
        for tag, end in zip(tags, ends, strict=True):
            number, part = self._cut.pop(tag[1], (raw.number, tag[0]))
            part += text[tag.end() : end]
            if end < len(text):
                self._cut[tag[1]] = (number, part)
                self._scanner.look_ahead = max(self._scanner.look_ahead, GLUE_LINES)
            else:
                yield number, part
        if len(self._cut) > _MAX_OPEN:
            self._cut.clear()

    def _windows(self, raw: RawLine) -> Iterator[tuple[int, str]]:
        """The parts of a very long line that hold a needle."""
        for at in range(0, len(raw.data), LONG_BYTES):
            part = raw.data[at : at + LONG_BYTES + OVERLAP_BYTES]
            if self._catalogue.needles.is_in(part.lower()):
                yield raw.number, part.decode(errors="replace")

    def _unquoted(self, text: str) -> str:
        """The line without what goes on of a user's text from the lines before."""
        if self._quote is None:
            self._quote, self._quoted_lines = texts.open_quote(text), 0
            if self._quote:
                self._scanner.look_ahead = max(self._scanner.look_ahead, QUOTE_LINES)
            return text
        self._quoted_lines += 1
        end = text.find(self._quote)
        if end < 0 and self._quoted_lines < QUOTE_LINES:
            return ""
        self._quote = None
        return text[end + 1 :] if end >= 0 else text

    def _may_be_aside(self, line: Line) -> bool:
        """The line is part of a traceback, and the same line may mean more in another one."""
        return any((self._aside, _TRACEBACK.search(line.message), _GOES_ON.search(line.message)))

    def _as_told(self, line: Line) -> Line:
        """The line, no more serious than the warning that it belongs to: a traceback in a warning is no error."""
        if begun := _TRACEBACK.search(line.message):
            self._aside = self._begun_aside(line, begun)
            return line
        aside = self._aside
        if going := _GOES_ON.search(line.message):
            level = Level.WARNING if going[0].startswith("Exception") else aside.level if aside else Level.ERROR
            self._aside = _Aside(level, line.number, False, True)
            return line
        if aside is None or not aside.is_open or line.number - aside.number > TRACEBACK_LINES:
            return line
        if line.told(len(line.message)) is not None:
            self._aside = None
            return line
        aside.is_open = not _RAISED.match(line.message)
        aside.number = line.number
        return replace(line, untold=aside.level)

    def _begun_aside(self, line: Line, begun: re.Match[str]) -> _Aside | None:
        """What the traceback belongs to, where that is less than an error: the line itself, or what it follows."""
        told, before = line.told(begun.start()), self._aside
        if told is None and before and before.is_followed and line.number - before.number <= CHAINED_LINES:
            told = before.level
        return _Aside(told, line.number, True) if told is not None and told < Level.ERROR else None

    def _line(self, line: Line, rules: Iterable[Rule]) -> bool:
        """Takes in one line; False when others of its kind can't tell anything either."""
        if self._sought:
            self._seek(line)
        if self._named_below:
            self._name(self._named_below, line)
        told = echo = False
        for rule in rules:
            if not (found := rule.search(line)):
                continue
            if rule.name == "benign":
                return False
            if rule.name in ("echo", "exception"):
                echo |= rule.name == "echo"
                told |= not echo and self._error(line, found)
                continue
            if not isinstance(rule, Pattern):
                told |= self._other(rule, line, found)
                continue
            known = len(self.state.findings)
            explained = self._pattern(rule, line, found)
            told |= bool(rule.near or rule.unless) or len(self.state.findings) > known
            if explained:
                break
        return told

    def _other(self, rule: object, line: Line, found: re.Match[str]) -> bool:
        """True unless the line repeats what is known."""
        if isinstance(rule, Mark):
            return self._mark(rule.name, line)
        if isinstance(rule, Landmark):
            self._landmark(rule, line, found)
        elif isinstance(rule, Evidence):
            first, _ = self.state.evidence.get(rule.name, (_sign(line, found), 0))
            self.state.evidence[rule.name] = (first, line.number)
        elif isinstance(rule, Jit):
            self._jit(rule, line, found)
        return True

    def _landmark(self, rule: Landmark, line: Line, found: re.Match[str]) -> None:
        """Remembers the name, or looks for it in the next lines."""
        if rule.below is None:
            self.state.seen[rule.name] = (line.number, _last(rule.expressions[0], line, found)["value"])
            return
        self._named_below = rule
        self._scanner.look_ahead = max(self._scanner.look_ahead, BELOW_LINES)

    def _name(self, rule: Landmark, line: Line) -> None:
        """Remembers the name where the line is one."""
        if rule.below and (found := rule.below.search(line.message)):
            self.state.seen[rule.name] = (line.number, found["value"])
        if not self._scanner.look_ahead:
            self._named_below = None

    def _mark(self, name: str, line: Line) -> bool:
        """Where a mark changes what lines mean, all of them are looked at again from there on."""
        state = self.state
        before, known = (state.unavailable, state.ready, state.shutdown), len(state.findings) + len(state.errors)
        if name == "unavailable":
            state.unavailable = True
        elif name == "ready" and not state.unavailable:
            self._is_ready(line.number)
        elif name == "shutdown":
            state.shutdown = state.shutdown or line.number
        elif name == "start":
            self._starts()
        now = self.state
        if now.shutdown != before[2] or len(now.findings) + len(now.errors) != known:
            self._scanner.forget_boring()
        return before != (now.unavailable, now.ready, now.shutdown) or name == "quoting"

    def _is_ready(self, number: int) -> None:
        """What was found before and did not keep the server from becoming ready was not the cause of anything."""
        state = self.state
        if state.ready is None:
            state.ready = number
            state.findings = {key: one for key, one in state.findings.items() if self._vetoes(one)}
            state.errors.clear()

    def _vetoes(self, finding: Finding) -> bool:
        return any(pattern.veto for pattern in self._catalogue.patterns if pattern.name == finding.pattern)

    def _starts(self) -> None:
        """A start after a shutdown is a new life; one after READY is a restart."""
        if self.state.shutdown is not None and self.state.ready is not None:
            self.state = State(evidence=self.state.evidence, seen=self.state.seen)
        self.state.ready = None

    def _error(self, line: Line, found: re.Match[str]) -> bool:
        """Keeps the first exceptions; False when there are enough."""
        if len(self.state.errors) >= MAX_ERRORS or self._after_shutdown() or line.level(found.end()) < Level.ERROR:
            return False
        self.state.errors.append(_sign(line, found))
        return True

    def _after_shutdown(self) -> bool:
        return self.state.shutdown is not None and self.state.ready is not None

    def _jit(self, rule: Jit, line: Line, found: re.Match[str]) -> None:
        sign, name = _sign(line, found), found.groupdict().get("name") or ""
        if rule.name == "ended":
            self.state.waits_for_lock.pop(name, None)
        elif rule.name == "stalled":
            self.state.stalled = line.number
        elif rule.lock and len(self.state.waits_for_lock) < _MAX_OPEN:
            self.state.waits_for_lock.setdefault(name, sign)
        elif not rule.lock and self.state.compiles is None:
            self.state.compiles = sign

    def _pattern(self, pattern: Pattern, line: Line, found: re.Match[str]) -> bool:
        """True when the pattern explains the line, so that no other one needs to look at it."""
        level = line.level(found.end())
        if level < pattern.level or not self._is_time_for(pattern) or not self._near(pattern, line):
            return False
        strength = min(pattern.strength, _SOFT) if level < Level.ERROR and not pattern.phase else pattern.strength
        if (pattern.name, strength) in self.state.findings:
            return pattern.strength > 1
        finding = self._finding(pattern, line, found)
        if finding is None:
            return False
        if pattern.served and self.state.ready is not None:
            finding = replace(finding, verdict=pattern.served)
        self.state.findings[pattern.name, strength] = replace(finding, strength=strength)
        if pattern.seek:
            self._sought = (pattern, strength)
            self._scanner.look_ahead = max(self._scanner.look_ahead, SEEK_LINES)
            self._seek(line)
        return pattern.strength > 1

    def _is_time_for(self, pattern: Pattern) -> bool:
        if pattern.phase == "last":
            return False
        if pattern.phase == "shutdown":
            return self._after_shutdown()
        if pattern.phase == "served" and self.state.ready is None:
            return False
        return not self._after_shutdown() and not (self.state.shutdown is not None and pattern.teardown)

    def _near(self, pattern: Pattern, line: Line) -> bool:
        return all(self._is_near(line, *each) for each in pattern.near.items()) and not any(
            self._is_near(line, *each) for each in pattern.unless.items()
        )

    def _is_near(self, line: Line, landmark: str, lines: int) -> bool:
        return line.number - self.state.seen.get(landmark, (-1000, ""))[0] <= lines

    def _finding(self, pattern: Pattern, line: Line, found: re.Match[str]) -> Finding | None:
        scene = Scene(line.number, line.text, line.rank(found.end()), self.state.seen, self._context)
        return finding(pattern, line.sentence(found.start()), dict(found.groupdict()), scene)

    def _seek(self, line: Line) -> None:
        pattern, strength = self._sought or (None, 0)
        if pattern and pattern.seek and (found := pattern.seek.search(line.message)):
            done = self.state.findings[pattern.name, strength]
            values = {**done.captures, "culprit": found["culprit"]}
            self.state.findings[pattern.name, strength] = replace(
                done, culprit=found["culprit"], cause=fill(pattern.cause, values), fix=fill(pattern.fix, values)
            )
            self._sought = None
        elif not self._scanner.look_ahead:
            self._sought = None


def finding(pattern: Pattern, sentence: str, captures: dict[str, str | None], scene: Scene) -> Finding | None:
    """What the pattern means in that scene; None where it means nothing."""
    values = derived(captures, scene)
    refined = REFINEMENTS[pattern.refine](values, scene) if pattern.refine else Refined()
    if refined.kind == "":
        return None
    values |= {name: value for name, value in refined.captures.items() if value}
    values["culprit"] = refined.culprit or known(pattern.culprit, values)
    return Finding(
        scene.number, sentence, pattern.name, refined.kind or pattern.kind, refined.verdict or pattern.verdict,
        pattern.strength, values["culprit"], fill(refined.cause or pattern.cause, values),
        fill(refined.fix or pattern.fix, values), refined.check or pattern.check, scene.rank,
        {name: value for name, value in values.items() if value},
    )  # fmt: skip


def _sign(line: Line, found: re.Match[str]) -> Sign:
    return Sign(line.number, line.sentence(found.start()), dict(found.groupdict()))


def _last(expression: re.Pattern[str], line: Line, found: re.Match[str]) -> re.Match[str]:
    """The last match in the line: the name that is nearest to what follows."""
    return texts.last_of(expression.finditer(line.message, found.start())) or found
