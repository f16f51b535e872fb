"""Fuzzing: every parser with bytes that nobody meant.

    target(data)     one parser; lets pass the errors it may raise, and asserts what always holds
    our own loop     seeded mutations of what our encoders make; an input that comes to a new end joins them
    atheris          the same targets, guided by coverage, where it is installed

    python -m tests.chaos.fuzz                          the names of the targets
    python -m tests.chaos.fuzz TARGET FILE…             these inputs again
    python -m tests.chaos.fuzz --atheris TARGET [-max_total_time=60 …]

A finding is an error that the parser's contract does not name, a broken invariant, a case that takes longer
than SLOW_S of a processor, or a batch for which the process grows by more than MEMORY_BYTES_MAX.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.chaos.early import workers
from tests.chaos.fuzz_mutate import Mutator

if TYPE_CHECKING:
    from tests.chaos.report import Report

LAYER = "fuzz"
SLOW_S = 0.1
# Looked at more closely from here on: a busy machine is no finding.
_SUSPECT_S = 0.05
MEMORY_BYTES_MAX = 64 << 20
BATCH = 5000
CORPUS_MAX = 400
# Longer ones are tried, but not gone on from: cases would become slower and slower.
KEPT_BYTES_MAX = 2048
# A story of the machine takes as long as so many cases.
CASES_PER_STORY = 1000
# One cause is told once for each target, with the shortest input that was found.
FAILURES_MAX = 20


@dataclass(frozen=True)
class Target:
    """One parser.

    `run` raises one of `allowed`, or returns something short that tells one end from another.  `weight` is
    its share of the cases; it is small for the slow ones.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    allowed: tuple[type[BaseException], ...] = ()
    tokens: tuple[bytes, ...] = ()
    weight: float = 1.0

    def __call__(self, data: bytes) -> object:
        """The end it comes to: of a refusal the error and the line that raised it."""
        try:
            return self.run(data)
        except self.allowed as error:
            return type(error), _raised_at(error.__traceback__)


@dataclass
class Finding:
    """What went wrong, and the shortest input that shows it."""

    target: str
    cause: str
    data: bytes
    text: str
    count: int = 1


@dataclass
class Outcome:
    """Of one target: how many cases, how many ends, how long, what was found."""

    cases: int = 0
    seconds: float = 0.0
    ends: dict[object, int] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)


def _raised_at(at: TracebackType | None) -> tuple[str, int]:
    assert at is not None
    while at.tb_next is not None:
        at = at.tb_next
    return at.tb_frame.f_code.co_name, at.tb_lineno


def targets() -> dict[str, Target]:
    """All of them by name."""
    from tests.chaos import fuzz_builds, fuzz_flips, fuzz_greeting, fuzz_store, fuzz_text, fuzz_wire

    every = [*fuzz_wire.TARGETS, *fuzz_greeting.TARGETS, *fuzz_text.TARGETS, *fuzz_store.TARGETS]
    every += [*fuzz_flips.TARGETS, *fuzz_builds.TARGETS]
    named = {target.name: target for target in every}
    assert len(named) == len(every)
    return named


def fuzz(target: Target, cases: int, seed: int) -> Outcome:
    """So many cases of one target; the same seed gives the same cases."""
    outcome = Outcome()
    corpus = [bytes(data) for data in target.seeds()]
    mutator = Mutator(random.Random(f"{seed} {target.name}"), target.tokens)
    began_s = time.perf_counter()
    for data in corpus:
        _case(target, data, outcome)
    made = len(corpus)
    while outcome.cases < cases:
        before = _resident_bytes(reset=True)
        for _ in range(min(BATCH, cases - outcome.cases)):
            data = mutator.make(corpus)
            if _case(target, data, outcome) and len(data) <= KEPT_BYTES_MAX:
                if len(corpus) < CORPUS_MAX:
                    corpus.append(data)
                else:
                    corpus[made + outcome.cases % (CORPUS_MAX - made)] = data
        grown = _resident_bytes() - before
        if grown > MEMORY_BYTES_MAX:
            _find(target, outcome, "memory", b"", f"a batch of {BATCH} cases took {grown >> 20} MiB")
    outcome.seconds = time.perf_counter() - began_s
    return outcome


def _case(target: Target, data: bytes, outcome: Outcome) -> bool:
    """Runs it; whether it came to an end that no other case came to."""
    outcome.cases += 1
    began_s = time.perf_counter()
    try:
        end = target(data)
    except Exception as error:
        end = (type(error), _raised_at(error.__traceback__))
        _find(target, outcome, str(end), data, traceback.format_exc(limit=-4))
    if time.perf_counter() - began_s > _SUSPECT_S:
        _time(target, data, outcome)
    known = end in outcome.ends
    outcome.ends[end] = outcome.ends.get(end, 0) + 1
    return not known


def _time(target: Target, data: bytes, outcome: Outcome) -> None:
    least_s = min(_processor_seconds(target, data) for _ in range(3))
    if least_s > SLOW_S:
        _find(target, outcome, "slow", data, f"takes {least_s:.3f} s of a processor, {len(data)} bytes")


def _processor_seconds(target: Target, data: bytes) -> float:
    began_s = time.thread_time()
    with suppress(Exception):
        target(data)
    return time.thread_time() - began_s


def _find(target: Target, outcome: Outcome, cause: str, data: bytes, text: str) -> None:
    found = outcome.findings.get(cause)
    if found is None:
        if len(outcome.findings) < FAILURES_MAX:
            outcome.findings[cause] = Finding(target.name, cause, data, text)
        return
    found.count += 1
    if len(data) < len(found.data):
        found.data, found.text = data, text


def shrunk(target: Target, finding: Finding, tries: int = 4000) -> bytes:
    """A shorter input that fails in the same way: pieces are left out as long as it does."""
    if finding.cause in ("slow", "memory"):
        return finding.data
    data = finding.data
    size = max(1, len(data) // 2)
    while size and tries > 0:
        at, smaller = 0, False
        while at < len(data) and tries > 0:
            tries -= 1
            candidate = data[:at] + data[at + size :]
            if _fails_as(target, candidate, finding.cause):
                data, smaller = candidate, True
            else:
                at += size
        size = size if smaller and size == 1 else size // 2
    return data


def _fails_as(target: Target, data: bytes, cause: str) -> bool:
    try:
        target(data)
    except Exception as error:
        return str((type(error), _raised_at(error.__traceback__))) == cause
    return False


def _resident_bytes(*, reset: bool = False) -> int:
    """What the process holds; without `reset` the most since the last one with it.  0 where unknown."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:" if reset else "VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def shares(named: dict[str, Target], rounds: int) -> dict[str, int]:
    """How many cases each target gets, the last one at least a few."""
    whole = sum(target.weight for target in named.values())
    return {name: max(20, round(rounds * target.weight / whole)) for name, target in named.items()}


def run(rounds: int, seed: int, report: Report) -> None:
    """`rounds` cases, shared among all targets, and some stories of the machine of logs and acks."""
    cases, seconds = 0, 0.0
    names = shares(targets(), rounds)
    with workers(report.jobs) as pool:
        parts = {pool.submit(_fuzz_named, name, share, seed): name for name, share in names.items()}
        machine = pool.submit(_run_machine, max(1, rounds // CASES_PER_STORY), seed)
        for part in as_completed(parts):
            outcome, texts = part.result()
            cases, seconds = cases + outcome.cases, seconds + outcome.seconds
            report.progress(LAYER, cases, rounds)
            report.add(LAYER, "cases", outcome.cases)
            rate = outcome.cases / max(outcome.seconds, 1e-9)
            ends = f"{outcome.cases:,} cases, {len(outcome.ends)} ends, {rate:,.0f} a second"
            report.figure(LAYER, parts[part], ends)
            for text in texts:
                repeat = f"python -m tests.chaos.fuzz {parts[part]} FILE, with the input in FILE"
                report.failure(LAYER, seed, text, repeat)
        text = machine.result()
        if text:
            report.failure(LAYER, seed, text, "pytest tests/chaos/test_fuzz.py")
    report.add(LAYER, "stories of logs and acks", max(1, rounds // CASES_PER_STORY))
    report.figure(LAYER, "cases a second", round(cases / max(seconds, 1e-9)))


def _fuzz_named(name: str, cases: int, seed: int) -> tuple[Outcome, list[str]]:
    """In a process of its own: what came of it, and the findings told."""
    logging.disable(logging.CRITICAL)
    target = targets()[name]
    outcome = fuzz(target, cases, seed)
    texts = [told(target, finding) for finding in outcome.findings.values()]
    outcome.ends = dict.fromkeys(range(len(outcome.ends)), 0)  # the ends themselves may not travel
    return outcome, texts


def _run_machine(stories: int, seed: int) -> str:
    """What hypothesis says of a story that fails, made as short as it can; "" when none does."""
    from tests.chaos.fuzz_machine import explore

    logging.disable(logging.CRITICAL)
    try:
        explore(stories, seed)
    except Exception:
        return traceback.format_exc()
    return ""


def told(target: Target, finding: Finding) -> str:
    data = shrunk(target, finding)
    shown = f"{data!r}" if len(data) <= 2000 else f"{data[:2000]!r} and {len(data) - 2000} bytes more"
    return f"{finding.target}: {finding.count} times\n{finding.text}input, {len(data)} bytes: {shown}"


# -- by hand ---------------------------------------------------------------------------------------


def _with_atheris(target: Target, arguments: list[str]) -> None:
    """Never returns.  It begins with our seeds and tokens, and leaves a crashing input in this directory."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    directory = Path(tempfile.mkdtemp(prefix=f"fuzz-{target.name}-"))
    corpus, tokens = directory / "corpus", directory / "tokens"
    corpus.mkdir()
    for number, data in enumerate(target.seeds()):
        (corpus / str(number)).write_bytes(data)
    lines = ["".join(f"\\x{byte:02x}" for byte in token) for token in target.tokens]
    tokens.write_text("".join(f'"{line}"\n' for line in lines))

    def one(data: bytes) -> None:
        target(data)

    guide: Any = atheris
    guide.instrument_all()
    guide.Setup([sys.argv[0], f"-dict={tokens}", *arguments, str(corpus)], one)
    guide.Fuzz()


def main(arguments: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    guided = arguments[:1] == ["--atheris"]
    if guided:
        arguments = arguments[1:]
    named = targets()
    if not arguments:
        print("\n".join(named))
        return 0
    target = named[arguments[0]]
    if guided:
        _with_atheris(target, arguments[1:])
    for path in arguments[1:]:
        print(path, target(Path(path).read_bytes()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
