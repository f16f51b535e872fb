"""Report: what every layer of the harness counted and found, kept as JSON lines while it runs.

    ran         that a layer begins: when, of which commit, by which command, where
    figure      a number or a text of a layer; of two with one name the later counts
    add         a number that grows: rounds, acknowledged messages, cases
    violation   one more broken promise of a class (checker.Violation's words)
    recovery    how long after a fault of some kind the first OK came, and what it lost
    series      points for a plot: unit, and (x, y) pairs
    span        a fault in a timeline
    round       a round that was played, so that a run that was interrupted can go on behind it
    over        how far the layer's run came, and what ended it early
    failure     a seed that fails, why, and the command that repeats it

One thread or process owns a Report.  A line is on disk when the call returns, so that what a run found
outlives it; `load` takes the lines of several runs together, and numbers that grow are added up.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

LINES = "report.jsonl"
# Layers that measure somebody else's broker: what they find broken fails nothing.
BASELINES = {"stock"}
# A number of a layer: rounds that could not be judged.  Their seeds are among the failures.
HARNESS_FAILED = "rounds that the harness failed"
# Failures that are kept with their text; beyond that they are only counted.
FAILURES_MAX = 200
TEXT_CHARACTERS_MAX = 20_000


class Failure(NamedTuple):
    """A seed that fails."""

    layer: str
    seed: int
    text: str
    repeat: str


class Recovered(NamedTuple):
    """One fault of a kind: seconds to the first OK after it, acknowledged bytes that it took."""

    layer: str
    kind: str
    seconds: float
    lost_bytes: int


class Series(NamedTuple):
    """Points of one line in a plot."""

    layer: str
    name: str
    unit: str
    points: list[tuple[float, float]]
    seed: int = 0


class Span(NamedTuple):
    """A fault of a timeline, in its seconds."""

    layer: str
    name: str
    begin: float
    end: float
    seed: int = 0


def _no_progress(layer: str, done: int, total: int) -> None:
    pass


class Ran(NamedTuple):
    """One run of a layer: when it began (UTC), of which commit, on what machine, by which command.

    What follows the command is not known of runs from before it was written.
    """

    layer: str
    at: str
    commit: str
    machine: str
    command: str
    seed: int | None = None
    """Of the first round."""
    done: int | None = None
    """How many rounds ran; None if the run did not come to say so."""
    rounds: int = 0
    """How many were to run."""
    early: str = ""
    """What ended it before they had; empty if nothing did."""


class Report:
    """Collects; with `directory` every line goes to its report.jsonl as well."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        progress: Callable[[str, int, int], None] = _no_progress,
        jobs: int = 1,
    ) -> None:
        self.directory = directory
        self._progress = progress
        self.reached: dict[str, tuple[int, int]] = {}
        """By layer: how many rounds are over, and how many were to be played."""
        self.jobs = jobs
        """How many processes a layer may use."""
        self.figures: dict[str, dict[str, Any]] = defaultdict(dict)
        self.totals: dict[str, Counter[str]] = defaultdict(Counter)
        self.violations: dict[str, Counter[str]] = defaultdict(Counter)
        self.recoveries: list[Recovered] = []
        self.all_series: list[Series] = []
        self.spans: list[Span] = []
        self.failures: list[Failure] = []
        self.failed: Counter[str] = Counter()
        self.missing: dict[str, str] = {}
        self.runs: list[Ran] = []
        self.rounds: dict[str, dict[int, str]] = defaultdict(dict)
        """By layer: each seed that was played, and its kind."""
        self._file: IO[str] | None = None
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / LINES).open("a", buffering=1)

    @classmethod
    def into(cls, file: IO[str]) -> Report:
        """One whose lines go to `file`, for take_line() of another process."""
        report = cls()
        report._file = file
        return report

    @classmethod
    def load(cls, *paths: Path) -> Report:
        """What the lines of `paths` (files, or directories that hold report.jsonl) say together."""
        report = cls()
        for path in paths:
            file = path / LINES if path.is_dir() else path
            for line in file.read_text().splitlines():
                if line.strip():
                    report._take(json.loads(line))
        return report

    def close(self) -> None:
        """May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- what layers say ----------------------------------------------------------------------------

    def progress(self, layer: str, done: int, total: int) -> None:
        """So many rounds are over; it is shown, and written when the layer ends."""
        self.reached[layer] = (done, total)
        self._progress(layer, done, total)

    def figure(self, layer: str, name: str, value: float | str) -> None:
        """A number or a text; it replaces what the layer said by this name before."""
        self._put({"what": "figure", "layer": layer, "name": name, "value": value})

    def add(self, layer: str, name: str, count: int = 1) -> None:
        """A number that grows, in this run and from run to run."""
        self._put({"what": "add", "layer": layer, "name": name, "count": count})

    def violation(self, layer: str, violation: str, count: int = 1) -> None:
        self._put({"what": "violation", "layer": layer, "name": violation, "count": count})

    def recovery(self, layer: str, kind: str, seconds: float, lost_bytes: int = 0) -> None:
        self._put(
            {"what": "recovery", "layer": layer, "name": kind, "seconds": seconds, "lost_bytes": lost_bytes}
        )

    def seconds_by_kind(self, layer: str) -> dict[str, list[float]]:
        """How long the recoveries of a layer took."""
        seconds: dict[str, list[float]] = defaultdict(list)
        for one in self.recoveries:
            if one.layer == layer:
                seconds[one.kind].append(one.seconds)
        return seconds

    def series(
        self, layer: str, name: str, points: Iterable[tuple[float, float]], unit: str = "", seed: int = 0
    ) -> None:
        """A line of a plot; lines of one layer that have one unit share theirs.  The plot shows one seed."""
        some = [(float(x), float(y)) for x, y in points]
        self._put(
            {"what": "series", "layer": layer, "name": name, "unit": unit, "points": some, "seed": seed}
        )

    def span(self, layer: str, name: str, begin_s: float, end_s: float, seed: int = 0) -> None:
        """A fault, for the timeline of the layer."""
        self._put(
            {"what": "span", "layer": layer, "name": name, "begin": begin_s, "end": end_s, "seed": seed}
        )

    def failure(self, layer: str, seed: int, text: str, repeat: str = "") -> None:
        """A failing seed; `repeat` is the command that shows it again."""
        repeat = repeat or f"scripts/chaos --rounds 1 --seed {seed} {layer}"
        text = text[:TEXT_CHARACTERS_MAX]
        self._put({"what": "failure", "layer": layer, "seed": seed, "text": text, "repeat": repeat})

    def ran(self, run: Ran) -> None:
        """A layer begins."""
        self._put({"what": "ran", **run._asdict()})

    def over(self, layer: str, early: str = "") -> None:
        """The layer's run ends, as far as its progress() has said; `early` is what ended it if not by itself."""
        done, rounds = self.reached[layer]
        self._put({"what": "over", "layer": layer, "done": done, "rounds": rounds, "early": early})

    def round(self, layer: str, seed: int, kind: str, ok: bool, seconds: float) -> None:
        """One that was played."""
        self._put(
            {
                "what": "round",
                "layer": layer,
                "seed": seed,
                "kind": kind,
                "ok": ok,
                "seconds": round(seconds, 2),
            }
        )

    def played(self, layer: str) -> set[int]:
        """The seeds whose rounds this directory's earlier runs have played."""
        if self.directory is None:
            return set()
        return set(Report.load(self.directory).rounds[layer])

    def take_line(self, line: bytes) -> None:
        """What a report of another process has written."""
        self._put(json.loads(line))

    def absent(self, layer: str, why: str) -> None:
        """This layer did not run."""
        self._put({"what": "absent", "layer": layer, "why": why})

    # -- keeping ------------------------------------------------------------------------------------

    def _put(self, said: dict[str, Any]) -> None:
        self._take(said)
        if self._file is not None:
            self._file.write(json.dumps(said, separators=(",", ":")) + "\n")

    def _take(self, said: dict[str, Any]) -> None:
        layer = said["layer"]
        match said["what"]:
            case "figure":
                self.figures[layer][said["name"]] = said["value"]
            case "add":
                self.totals[layer][said["name"]] += said["count"]
            case "violation":
                self.violations[layer][said["name"]] += said["count"]
            case "recovery":
                self.recoveries.append(Recovered(layer, said["name"], said["seconds"], said["lost_bytes"]))
            case "series":
                points = [(x, y) for x, y in said["points"]]
                self.all_series.append(Series(layer, said["name"], said["unit"], points, said.get("seed", 0)))
            case "span":
                self.spans.append(Span(layer, said["name"], said["begin"], said["end"], said.get("seed", 0)))
            case "failure":
                self.failed[layer] += 1
                if len(self.failures) < FAILURES_MAX:
                    self.failures.append(Failure(layer, said["seed"], said["text"], said["repeat"]))
            case "ran":
                self.runs.append(Ran(**{name: said[name] for name in Ran._fields if name in said}))
            case "over":
                self._over(said)
            case "round":
                self.rounds[layer][said["seed"]] = said["kind"]
            case "absent":
                self.missing[layer] = said["why"]

    def _over(self, said: dict[str, Any]) -> None:
        """It is the layer's last run that this is said of."""
        for at in reversed(range(len(self.runs))):
            if self.runs[at].layer == said["layer"]:
                over = {name: said[name] for name in ("done", "rounds", "early")}
                self.runs[at] = self.runs[at]._replace(**over)
                return

    @property
    def layers(self) -> list[str]:
        """Every layer that said something, in the order in which they did."""
        named = [*self.totals, *self.figures, *self.violations, *self.failed]
        named += [one.layer for one in (*self.recoveries, *self.all_series, *self.spans)]
        return list(
            dict.fromkeys(layer for layer in named if layer not in self.missing or self._counted(layer))
        )

    def _counted(self, layer: str) -> bool:
        """Whether it did something; one that found nothing to run on took its seconds, too."""
        return any(count for name, count in self.totals[layer].items() if name != "seconds")

    @property
    def ok(self) -> bool:
        """No promise was broken, and no seed failed, but in a baseline."""
        broken = {layer for layer, counts in self.violations.items() if counts.total()}
        return not (broken | set(self.failed)) - BASELINES
