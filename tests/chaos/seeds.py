"""A layer on virtual time whose rounds are seeds: each is run, counted, and told if it broke a promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.checker import Verdict
from tests.chaos.early import workers
from tests.chaos.report import Report


@dataclass(slots=True)
class Outcome:
    """One seed's run; of one that broke no promise no trace is kept."""

    seed: int
    mode: str
    verdicts: list[Verdict]
    count: Counter[str]
    steps: int
    trace: list[str]

    def text(self) -> str:
        return "\n".join([self.mode, *map(str, self.verdicts[:10]), "the last steps:", *self.trace])


# A function of a module, so that other processes find it.
Simulate = Callable[[int], Outcome]


def run_seeds(layer: str, simulate: Simulate, seeds: range, per_task: int, report: Report) -> None:
    """The layer's rounds; a process takes `per_task` of them at a time."""
    count: Counter[str] = Counter()
    try:
        for done, outcome in enumerate(_outcomes(simulate, seeds, per_task, report.jobs), 1):
            count.update(outcome.count)
            count["seeds"] += 1
            count["steps"] += outcome.steps
            count[f"seeds with {outcome.mode.partition(',')[0]}"] += 1
            for verdict in outcome.verdicts:
                report.violation(layer, verdict.violation.value)
            if outcome.verdicts:
                report.failure(layer, outcome.seed, outcome.text())
            report.progress(layer, done, len(seeds))
    finally:
        for name, number in sorted(count.items()):
            report.add(layer, name, number)


def _outcomes(simulate: Simulate, seeds: range, per_task: int, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(simulate, seeds)
        return
    tasks = [seeds[at : at + per_task] for at in range(0, len(seeds), per_task)]
    with workers(jobs) as pool:
        for part in [pool.submit(_each, simulate, task) for task in tasks]:
            yield from part.result()


def _each(simulate: Simulate, seeds: range) -> list[Outcome]:
    return [simulate(seed) for seed in seeds]
