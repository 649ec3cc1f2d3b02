"""From a log and what is known from outside to one diagnosis. Pure: bytes in, a ``Diagnosis`` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolkit.diagnose import text as texts
from toolkit.diagnose.catalogue import Catalogue, Combination, Pattern, load
from toolkit.diagnose.model import Context, Diagnosis, Ending, Finding, Verdict
from toolkit.diagnose.reader import Reader, Sign, State, finding
from toolkit.diagnose.refine import Scene
from toolkit.diagnose.stream import Pieces, RawLine, Scanner
from toolkit.diagnose.template import fill, known
from toolkit.diagnose.text import Level
from toolkit.units import format_duration

_ROOT, _SOFT, _WEAK = 3, 2, 1
_LAST_LINES = 8
_DEATH_LINES = 3
_SHOWN = 3
_STALL_WORDS = ("[watch]", "no output", "stack of", "py-spy", "still running", "still waiting")


def classify(
    pieces: Pieces,
    ending: Ending | None = None,
    context: Context | None = None,
    catalogue: Catalogue | None = None,
    lines_before: int = 0,
) -> Diagnosis:
    """The diagnosis of a log that comes in ``pieces`` (a file opened for bytes, chunks, or lines with line feeds).

    ``lines_before`` of the file were left out; they are counted.
    """
    return Reading(pieces, context, catalogue, lines_before).told(ending)


class Reading:
    """A log that is read on as it grows: ``told`` takes in what came up to a pause, and says what all of it means."""

    def __init__(
        self,
        pieces: Pieces,
        context: Context | None = None,
        catalogue: Catalogue | None = None,
        lines_before: int = 0,
    ) -> None:
        self._context, self._catalogue = context or Context(), catalogue or load()
        self._scanner = Scanner(pieces, self._catalogue.needles, lines_before)
        self._reader = Reader(self._catalogue, self._scanner, self._context)

    def told(self, ending: Ending | None = None) -> Diagnosis:
        """The diagnosis of what was read so far."""
        ending = ending or Ending()
        state = self._reader.read()
        tail = _Tail(self._scanner.tail(), self._catalogue)
        chosen = _chosen(state, ending, tail)
        if chosen:
            return _told(_combined(_at_first_wait(chosen, state), state, self._catalogue), state)
        stall = _stall(state, ending, tail, self._context)
        return _told(stall, state) if stall else _without_cause(state, ending, tail)


class _Tail:
    """The end of the log, without empty lines."""

    def __init__(self, lines: Sequence[RawLine], catalogue: Catalogue) -> None:
        made = [texts.make(line.number, line.text) for line in lines]
        self.lines = [line for line in made if line.message.strip(" \t\r+-|=")]
        self.catalogue = catalogue

    @property
    def is_empty(self) -> bool:
        return not self.lines

    def gone(self) -> bool:
        """The last lines say that the program ended."""
        return any(self.catalogue.gone.search(line.message) for line in self.lines[-_LAST_LINES:])

    def last_of_program(self) -> int:
        """Index of the last line that is not a watcher's; -1: there is none."""
        for index in range(len(self.lines) - 1, -1, -1):
            if not _is_watcher(self.lines[index].text):
                return index
        return -1

    def progresses(self) -> bool:
        """The last line of the program shows a start under way."""
        index = self.last_of_program()
        if index < 0:
            return False
        line = self.lines[index]
        told = line.told(len(line.message))
        return self.catalogue.is_progress(line.message) if told is None else told < Level.ERROR

    def ends_badly(self) -> bool:
        """One of the last lines says that something failed, and the last of all shows no progress after it."""
        index = self.last_of_program()
        last = self.lines[index] if index >= 0 else None
        if last and self.catalogue.is_progress(last.message) and not self._is_trouble(last):
            return False
        return any(self._is_trouble(line) for line in self.lines[-_SHOWN:])

    def _is_trouble(self, line: texts.Line) -> bool:
        found = self.catalogue.suspicious.search(line.message)
        return bool(found and line.level(found.end()) >= Level.ERROR and not self._is(line, "benign"))

    def ends_with(self, pattern: str) -> bool:
        """The last line of the program is one that the pattern matches."""
        line = self.lines[self.last_of_program()]
        return any(rule.name == pattern and rule.search(line) for rule in self.catalogue.patterns)

    def errors(self, since: int) -> list[Sign]:
        """The last lines after line ``since`` that look like trouble."""
        signs: list[Sign] = []
        for line in reversed(self.lines):
            if line.number <= since or len(signs) == _SHOWN:
                break
            found = self.catalogue.suspicious.search(line.message)
            if found and self._is_trouble(line) and not self._is(line, "echo"):
                signs.append(Sign(line.number, line.sentence(found.start())))
        return signs

    def waits_for_lock(self, line: texts.Line) -> bool:
        """The line is one after which only a lock keeps a program silent."""
        return self._is(line, "begun")

    def _is(self, line: texts.Line, mark: str) -> bool:
        rules = self.catalogue.concerned(line.text.lower().encode())
        return any(rule.name == mark and rule.search(line) for rule in rules)

    def last_pattern(self, context: Context) -> Finding | None:
        """The finding of a pattern that counts only where the log ends; its root is the first such line in a row."""
        found = None
        for line in reversed(self.lines[: self.last_of_program() + 1]):
            scene = Scene(line.number, line.text, line.rank(len(line.message)), {}, context)
            pattern = self._last_rule(line)
            if pattern is None or (found and found.pattern != pattern.name):
                return found
            found = finding(pattern, line.sentence(0), {}, scene)
        return found

    def _last_rule(self, line: texts.Line) -> Pattern | None:
        rules = (rule for rule in self.catalogue.patterns if rule.phase == "last")
        return next((rule for rule in rules if rule.search(line)), None)


def _is_watcher(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _STALL_WORDS)


def _chosen(state: State, ending: Ending, tail: _Tail) -> Finding | None:
    """The finding that is the root: the earliest that is strong, or what explains it."""
    findings = sorted(state.findings.values(), key=lambda one: one.number)
    roots = [one for one in findings if one.strength >= _ROOT]
    soft = [one for one in findings if one.strength == _SOFT]
    if roots:
        return next((one for one in soft if _explains(one, roots[0], tail.catalogue)), roots[0])
    if soft and (_failed(state, ending, tail) or tail.ends_with(soft[0].pattern)):
        return soft[0]
    weak = [one for one in findings if one.strength == _WEAK]
    if ending.oom_killed:
        return _oom_killed(weak)
    if state.ready is None and not _failed(state, ending, tail):
        return None
    unexplained = min((error.number for error in state.errors), default=None)
    if unexplained is not None:
        weak = [one for one in weak if one.number < unexplained or one.number == unexplained]
    timed_out = [one for one in weak if one.kind == "start_timeout"]
    return _of_its_death(next(iter(timed_out or weak), None), weak)


def _of_its_death(found: Finding | None, weak: Sequence[Finding]) -> Finding | None:
    """What the next lines say of how a process died whose death is all that is found."""
    if found is None or found.kind != "rank_crashed" or found.captures.get("signal"):
        return found
    killed = (one for one in weak if one.kind == "host_oom" and 0 <= one.number - found.number <= _DEATH_LINES)
    return next(killed, found)


def _explains(soft: Finding, root: Finding, catalogue: Catalogue) -> bool:
    explains = {pattern.name: pattern.explains for pattern in catalogue.patterns}[soft.pattern]
    return soft.number < root.number and (soft.kind == root.kind or root.kind in explains)


def _failed(state: State, ending: Ending, tail: _Tail) -> bool:
    if state.ready is not None:
        return False
    return (
        bool(state.errors or tail.errors(0))
        or ending.exit_status not in (None, 0)
        or tail.gone()
        or not tail.progresses()
    )


def _oom_killed(weak: Sequence[Finding]) -> Finding:
    line = next((one for one in weak if one.kind == "host_oom"), None)
    cause = "The kernel killed the process for want of host memory (memory.events counted it)."
    fix = "Give the service more host memory, or load less at a time; remove what was left half-written."
    if line:
        return replace(line, cause=cause, fix=fix, strength=_ROOT)
    return Finding(0, "", "memory-events", "host_oom", "stop", _ROOT, None, cause, fix, "host-memory")


def _combined(found: Finding, state: State, catalogue: Catalogue) -> Finding:
    """The finding in the light of evidence elsewhere in the log."""
    for rule in catalogue.combinations:
        if rule.evidence in state.evidence:
            sign, last = state.evidence[rule.evidence]
            if rule.concerns(found, sign.number, last):
                return _become(found, rule, sign)
    return found


def _become(found: Finding, rule: Combination, sign: Sign) -> Finding:
    values = {**found.captures, **sign.captures}
    culprit = found.culprit if rule.culprit is None else known(rule.culprit, values)
    number, text = (sign.number, sign.text) if rule.at_evidence else (found.number, found.text)
    return replace(
        found, kind=rule.becomes, verdict=rule.verdict, culprit=culprit, number=number, text=text, rule=rule.check,
        cause=fill(rule.cause, values), fix=fill(rule.fix, values),
    )  # fmt: skip


def _stall(state: State, ending: Ending, tail: _Tail, context: Context) -> Finding | None:
    """Why the program is silent, where it has not ended: it compiles, waits for a lock, or hangs at a known place."""
    if state.ready is not None or ending.exit_status is not None:
        return None
    if found := tail.last_pattern(context):
        return found
    if tail.gone() or state.errors:
        return None
    waits = min(state.waits_for_lock.values(), key=lambda sign: sign.number, default=None)
    if waits and not state.compiles and not ending.compiling and _is_last(waits, tail):
        return _stale_lock(waits)
    _, library = state.seen.get("jit_library", (0, None))
    if state.compiles or (ending.compiling and waits):
        return _compiling(state.compiles or waits, library)
    if ending.compiling:
        return _compiling(None, library)
    return _too_slow(ending, state, tail)


def _is_last(sign: Sign, tail: _Tail) -> bool:
    """Nothing but other waits of the same kind, watchers and stacks comes after the line."""
    after = [line for line in tail.lines if line.number > sign.number]
    for line in after:
        if _is_watcher(line.text):
            return True
        if not tail.waits_for_lock(line):
            return False
    return True


def _at_first_wait(found: Finding, state: State) -> Finding:
    """A stack that waits for a lock belongs to the first load that never ended."""
    waits = min(state.waits_for_lock.values(), key=lambda sign: sign.number, default=None)
    if found.kind != "jit_lock_stale" or waits is None or waits.number > found.number:
        return found
    return replace(found, number=waits.number, text=waits.text)


def _stale_lock(sign: Sign) -> Finding:
    culprit = sign.captures.get("product") or "torch_extensions"
    cause = "JIT ops are loaded and no compile step follows: the process waits for a build lock that nobody holds."
    fix = "Remove the lock in the JIT cache of this role when nobody holds it, then start again."
    return Finding(
        sign.number, sign.text, "jit-lock", "jit_lock_stale", "retry_after_cleanup", _ROOT, culprit, cause, fix,
        "stale-jit-lock",
    )  # fmt: skip


def _compiling(sign: Sign | None, library: str | None) -> Finding:
    captures = sign.captures if sign else {}
    culprit = next((captures[name] for name in ("product", "product2", "product3") if captures.get(name)), library)
    cause = f"{culprit or 'Kernels'}: kernels are being compiled for the first time; the start is slow but goes on."
    fix = "Wait; keep the kernel cache of this role so that the next start is quick."
    number, text = (sign.number, sign.text) if sign else (0, "")
    return Finding(number, text, "jit-compiling", "jit_compiling", "wait", _ROOT, culprit, cause, fix)


def _too_slow(ending: Ending, state: State, tail: _Tail) -> Finding | None:
    """Silence without a compiler and without a lock."""
    if not ending.stalled and state.stalled is None:
        return None
    line = tail.lines[tail.last_of_program()] if tail.last_of_program() >= 0 else None
    quiet = f" for {format_duration(ending.quiet_s)}" if ending.quiet_s else ""
    cause = f"The start has said nothing{quiet}; no compiler runs and no build lock is waited for."
    fix = "Look at the stacks of the process (py-spy dump) for what it waits for, or give the start more time."
    number, text = (line.number, texts.clip(line.message.strip())) if line else (0, "")
    return Finding(number, text, "silence", "start_timeout", "stop", _ROOT, None, cause, fix, "start-budget")


def _told(found: Finding, state: State) -> Diagnosis:
    """The finding as an answer, with what else the log shows."""
    others = sorted((one for one in state.findings.values() if one.kind != found.kind), key=lambda one: one.number)
    also = tuple(f"line {one.number}: {one.kind}: {texts.clip(one.text, 200)}" for one in others[:3])
    return Diagnosis(
        found.kind, found.verdict, found.cause, found.fix, found.culprit, found.number or None, found.text or None,
        also, found.rule, found.pattern,
    )  # fmt: skip


def _without_cause(state: State, ending: Ending, tail: _Tail) -> Diagnosis:
    """Healthy, still loading, or unknown."""
    failed = ending.exit_status not in (None, 0)
    errors = bool(state.errors or tail.errors(state.ready or 0))
    if state.ready is not None and not (failed and state.shutdown is None):
        return _healthy("none", "The server came up and its log names nothing that is wrong.", "Nothing to do.")
    if _is_loading(state, ending, tail):
        return _healthy("wait", "The server is still starting: its last line shows progress.", "Wait.")
    if tail.is_empty:
        advice = "Check that the process was executed at all and where its output goes."
        return Diagnosis("unknown", "stop", f"The log is empty: {_end(ending)}.", advice)
    if ending.sigkill and ending.oom_killed is None and not errors:
        cause = "The process was killed (SIGKILL) without a word, as the kernel does when host memory runs out."
        fix = "Look for an oom_kill in the memory events of the container and give it more host memory."
        return Diagnosis("host_oom", "stop", cause, fix, rule="host-memory")
    return _unknown(state, ending, tail)


def _is_loading(state: State, ending: Ending, tail: _Tail) -> bool:
    if ending.exit_status is not None or ending.stalled or tail.gone() or not tail.progresses():
        return False
    return not (tail.ends_badly() or state.errors or state.unavailable or state.shutdown)


def _healthy(verdict: Verdict, summary: str, advice: str) -> Diagnosis:
    return Diagnosis("healthy", verdict, summary, advice)


def _unknown(state: State, ending: Ending, tail: _Tail) -> Diagnosis:
    """Nothing known fits: the most suspicious lines, or the last ones."""
    signs = {sign.number: sign.text for sign in [*state.errors, *tail.errors(state.ready or 0)]}
    if not signs:
        signs = {line.number: texts.clip(line.message.strip(), 300) for line in tail.lines[-3:]}
    shown = tuple(f"line {number}: {texts.clip(text, 300)}" for number, text in sorted(signs.items()))
    summary = f"Nothing known fits this log: {_end(ending)}."
    advice = "Read the lines shown here (and the kernel log) by hand before starting again."
    return Diagnosis("unknown", "stop", summary, advice, also=shown)


def _end(ending: Ending) -> str:
    if ending.exit_status is None:
        return "the process lives and is silent" if ending.stalled else "how the process ended is not told"
    if ending.exit_status < 0:
        return f"the process was killed by signal {-ending.exit_status}"
    return f"the process exited with status {ending.exit_status}"
