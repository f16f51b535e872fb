"""The report page: one self-contained HTML file, without JavaScript, and its plots as PNG and SVG beside it.

    when, of what · broken promises by class · what stock did · counts · recovery by kind of fault
    timelines · figures · failures

What it looks like is in report_page.html.jinja.  A layer that measures RocketMQ itself, as a baseline, has a table
of its own: what it breaks is not ours, and stands in no table or verdict about us.  All of it fits a screen of 1280 px.

matplotlib draws; it is imported here only, and when a page is made.
"""

from __future__ import annotations

import base64
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tests.chaos.checker import Violation
from tests.chaos.report import BASELINES, HARNESS_FAILED, Failure, Ran, Report, Series, Span

PAGE = "report.html"
_WIDTH_INCHES, _ROW_INCHES = 10.0, 2.2
_DPI = 110
# Every class has its column, so that a zero is seen to be one; then what only some layers have.
_CLASSES = [violation.value for violation in Violation]

_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_page(
    report: Report, directory: Path, *, title: str = "What the pair survived", made_by: str = ""
) -> Path:
    """Writes report.html and the plots into `directory`; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    layers = [layer for layer in report.layers if layer not in BASELINES]
    stock = [layer for layer in report.layers if layer in BASELINES]
    text = _PAGES.get_template("report_page.html.jinja").render(
        title=title,
        made_by=made_by,
        report=report,
        verdict=_verdict(report),
        dates=sorted(run.at[:10] for run in report.runs),
        commits=list(dict.fromkeys(run.commit for run in report.runs)),
        early=sum(bool(run.early) for run in report.runs),
        layers=layers,
        broken=_broken(report, layers),
        baselines=[(layer, *_baseline(report, layer)) for layer in stock],
        runs=[[run.layer, run.at, run.commit, run.machine, _extent(run), run.command] for run in report.runs],
        counts=[(layer, _counted(report.totals[layer].items())) for layer in layers],
        recoveries=_recoveries(report),
        plots=list(_plots(report, directory)),
        figures=[
            [layer, name, value]
            for layer in [*layers, *stock]
            for name, value in report.figures[layer].items()
        ],
        missing=[[layer, why] for layer, why in report.missing.items() if layer not in report.layers],
        failures=[
            ("Failing seeds", *_failures(report, layers)),
            ("For comparison: what stopped rounds with RocketMQ itself", *_failures(report, stock)),
        ],
    )
    page = directory / PAGE
    page.write_text(text)
    return page


# -- text and tables -----------------------------------------------------------------------------------


def _verdict(report: Report) -> tuple[str, str]:
    """In a word, and in a sentence."""
    broken = sum(counts.total() for layer, counts in report.violations.items() if layer not in BASELINES)
    failed = sum(count for layer, count in report.failed.items() if layer not in BASELINES)
    if not set(report.layers) - BASELINES:
        return "", "Nothing of ours was run."
    if report.ok:
        return "good", "No promise of ours was broken, and no run of ours failed."
    own = sum(counts[HARNESS_FAILED] for layer, counts in report.totals.items() if layer not in BASELINES)
    of_them = f", {own:,} of which the harness could not judge" if own else ""
    return "bad", f"{broken:,} broken promises, {failed:,} failing seeds{of_them}."


def _extent(run: Ran) -> str:
    """From which seed, how many rounds, and whether they are all that were to be."""
    if run.seed is None:
        return "see the command"  # a run from before this was written
    begin = f"from seed {run.seed}: "
    if run.done is None:
        return f"{begin}{run.rounds:,} were to be, and the run did not come to say how many it played"
    if run.early:
        return f"{begin}{run.done:,} of {run.rounds:,}, ended early by {run.early}"
    return f"{begin}{run.done:,}" if run.done >= run.rounds else f"{begin}{run.done:,} of {run.rounds:,}"


def _counted(counts: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(name, count) for name, count in counts if count]


def _broken(report: Report, layers: Sequence[str]) -> list[list[Any]]:
    """A row for each class: there are many, and few layers."""
    further = [name for layer in layers for name in report.violations[layer] if name not in _CLASSES]
    rows: list[list[Any]] = [
        [name, *(report.violations[layer][name] for layer in layers)]
        for name in [*_CLASSES, *dict.fromkeys(further)]
    ]
    return [*rows, ["failing seeds", *(report.failed[layer] for layer in layers)]]


def _baseline(report: Report, layer: str) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """What RocketMQ broke under the same faults, and all else that was counted; runs from before there was a word
    for it wrote "(stock's)".
    """
    old = " (stock's)"
    broken = Counter(report.violations[layer])
    counts = []
    for name, count in report.totals[layer].items():
        if name.endswith(old):
            broken[name.removesuffix(old)] += count
        else:
            counts.append((name, count))
    return _counted(sorted(broken.items())), counts


def _recoveries(report: Report) -> list[list[Any]]:
    kinds: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for one in report.recoveries:
        kinds[one.layer, one.kind].append((one.seconds, one.lost_bytes))
    rows = []
    for (layer, kind), all_ in sorted(kinds.items()):
        seconds = sorted(second for second, _ in all_)
        rows.append(
            [
                layer,
                kind,
                len(all_),
                f"{statistics.median(seconds):.3f}",
                f"{seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]:.3f}",
                f"{seconds[-1]:.3f}",
                sum(lost for _, lost in all_),
            ]
        )
    return rows


def _failures(report: Report, layers: Sequence[str]) -> tuple[list[Failure], int]:
    """Those that are told, and how many are not."""
    some = [failure for failure in report.failures if failure.layer in layers]
    return some, sum(report.failed[layer] for layer in layers) - len(some)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


_PAGES.filters["number"] = _number


# -- plots ----------------------------------------------------------------------------------------------


def _plots(report: Report, directory: Path) -> Iterable[tuple[str, str]]:
    """Each picture's name, and its PNG in base64; the files are written meanwhile."""
    by_layer: dict[str, list[Series]] = defaultdict(list)
    for series in report.all_series:
        by_layer[series.layer].append(series)
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in report.spans:
        spans[span.layer].append(span)
    for layer, all_ in by_layer.items():
        seed = _most_told(all_, spans[layer])
        picture = _timeline(
            *([one for one in all_ if one.seed == seed], [one for one in spans[layer] if one.seed == seed]),
            seed,
        )
        yield _saved(picture, directory, f"{layer}: timeline")
    if report.recoveries:
        yield _saved(_recovery_plot(report), directory, "recovery by kind of fault")


def _most_told(all_: Sequence[Series], spans: Sequence[Span]) -> int:
    """The seed with the most faults, of those that have lines."""
    return max({one.seed for one in all_}, key=lambda seed: (sum(one.seed == seed for one in spans), -seed))


def _figure(rows: int, height_inches: float) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, 1, sharex=True, squeeze=False, figsize=(_WIDTH_INCHES, height_inches), layout="constrained"
    )
    return figure, [row[0] for row in axes]


def _timeline(all_: Sequence[Series], spans: Sequence[Span], seed: int) -> Any:
    """One row for each unit, the faults across all of them, and named in a row of their own."""
    units = list(dict.fromkeys(series.unit for series in all_))
    names = list(dict.fromkeys(span.name for span in spans))
    rows = len(units) + bool(names)
    figure, axes = _figure(rows, _ROW_INCHES * rows + 0.5)
    for axis, unit in zip(axes, units, strict=False):
        for series in all_:
            if series.unit == unit:
                xs, ys = zip(*series.points, strict=True) if series.points else ((), ())
                axis.plot(xs, ys, label=series.name, linewidth=1.2, drawstyle="steps-post")
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper right", fontsize=8)
        axis.grid(alpha=0.3)
        for span in spans:
            axis.axvspan(
                span.begin, span.end, color=f"C{names.index(span.name) % 10}", alpha=0.12, linewidth=0
            )
    if names:
        axis = axes[-1]
        for number, name in enumerate(names):
            bars = [(span.begin, max(span.end - span.begin, 0.05)) for span in spans if span.name == name]
            axis.broken_barh(bars, (number - 0.4, 0.8), color=f"C{number % 10}")
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.grid(alpha=0.3, axis="x")
    axes[-1].set_xlabel(f"seconds, seed {seed}" if seed else "seconds")
    return figure


def _recovery_plot(report: Report) -> Any:
    kinds: dict[str, list[float]] = defaultdict(list)
    for one in report.recoveries:
        kinds[f"{one.kind} ({one.layer})"].append(one.seconds)
    names = sorted(kinds, key=lambda name: statistics.median(kinds[name]))
    figure, (axis,) = _figure(1, 0.35 * len(names) + 1.2)
    axis.boxplot([kinds[name] for name in names], vert=False, whis=(1, 99), showfliers=False)
    axis.set_yticks(range(1, len(names) + 1), names, fontsize=8)
    axis.set_xlabel("seconds from the fault's end to the first OK (median, quartiles, 1 % and 99 %)")
    axis.grid(alpha=0.3, axis="x")
    return figure


def _saved(figure: Any, directory: Path, name: str) -> tuple[str, str]:
    from matplotlib import pyplot

    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    png = directory / f"{stem}.png"
    figure.savefig(png, dpi=_DPI)
    figure.savefig(directory / f"{stem}.svg")
    pyplot.close(figure)
    return name, base64.b64encode(png.read_bytes()).decode()
