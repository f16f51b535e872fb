"""The report page: one self-contained HTML file, without JavaScript, and its plots as PNG and SVG beside it.

    when, of what · broken promises by class · what stock did · counts · recovery by kind of fault
    timelines · figures · failures

A layer that measures RocketMQ itself, as a baseline, has a table of its own: what it breaks is not ours, and
stands in no table or verdict about us.  All of it fits a screen of 1280 px.

matplotlib draws; it is imported here only, and when a page is made.
"""

from __future__ import annotations

import base64
import html
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.checker import Violation
from tests.chaos.report import BASELINES, HARNESS_FAILED, Ran, Report, Series, Span

PAGE = "report.html"
_WIDTH_INCHES, _ROW_INCHES = 10.0, 2.2
_DPI = 110
# Every class has its column, so that a zero is seen to be one; then what only some layers have.
_CLASSES = [violation.value for violation in Violation]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1rem; margin-bottom: .2rem; }
table { border-collapse: collapse; margin: .8rem 0; max-width: 100%; }
td, th { padding: .25rem .6rem; border: 1px solid #ddd; vertical-align: top; }
td:last-child { overflow-wrap: anywhere; }
th { background: #f5f5f5; text-align: left; font-weight: 600; }
td.n { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
td.bad { background: #fbd5d5; font-weight: 600; } td.good { color: #888; } img { max-width: 100%; }
pre { background: #f7f7f7; padding: .7rem; overflow-x: auto; font-size: 12px; }
p.verdict { font-size: 1.1rem; font-weight: 600; } p.verdict.good { color: #1b6b2f; }
p.verdict.bad { color: #a11515; }
ul.counts { columns: 17rem; padding-left: 1.2rem; margin: .3rem 0 1rem; }
ul.counts b { font-variant-numeric: tabular-nums; } code { overflow-wrap: anywhere; }
"""


def write_page(
    report: Report, directory: Path, *, title: str = "What the pair survived", made_by: str = ""
) -> Path:
    """Writes report.html and the plots into `directory`; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    plots = list(_plots(report, directory))
    layers = [layer for layer in report.layers if layer not in BASELINES]
    stock = [layer for layer in report.layers if layer in BASELINES]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>",
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>",
        _verdict(report),
        _told(report, made_by),
        "<h2>Broken promises</h2>",
        _violations(report, layers),
        *(_baseline(report, layer) for layer in stock),
        "<h2>What was run</h2>",
        _runs(report),
        *(_counts(report, layer) for layer in layers),
    ]
    if report.recoveries:
        parts += ["<h2>Recovery, by kind of fault</h2>", _recoveries(report)]
    if plots:
        parts.append("<h2>Pictures</h2>")
        parts += [
            f'<h3>{html.escape(name)}</h3><img alt="{html.escape(name)}" src="data:image/png;base64,{data}">'
            for name, data in plots
        ]
    parts += ["<h2>Figures</h2>", _figures(report, [*layers, *stock])]
    rows = [[layer, why] for layer, why in report.missing.items() if layer not in report.layers]
    if rows:
        parts += ["<h2>What did not run</h2>", _table(["layer", "why"], rows)]
    parts += _failures(report, "Failing seeds", layers)
    parts += _failures(report, "For comparison: what stopped rounds with RocketMQ itself", stock)
    page = directory / PAGE
    page.write_text("\n".join(part for part in parts if part))
    return page


# -- text and tables -----------------------------------------------------------------------------------


def _verdict(report: Report) -> str:
    broken = sum(counts.total() for layer, counts in report.violations.items() if layer not in BASELINES)
    failed = sum(count for layer, count in report.failed.items() if layer not in BASELINES)
    if not set(report.layers) - BASELINES:
        return '<p class="verdict">Nothing of ours was run.</p>'
    if report.ok:
        return '<p class="verdict good">No promise of ours was broken, and no run of ours failed.</p>'
    own = sum(counts[HARNESS_FAILED] for layer, counts in report.totals.items() if layer not in BASELINES)
    of_them = f", {own:,} of which the harness could not judge" if own else ""
    return f'<p class="verdict bad">{broken:,} broken promises, {failed:,} failing seeds{of_them}.</p>'


def _told(report: Report, made_by: str) -> str:
    """When, of which commits, and how the page was made."""
    dates = sorted(run.at[:10] for run in report.runs)
    commits = list(dict.fromkeys(run.commit for run in report.runs))
    parts = []
    if dates:
        span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        many = " (several: each run below says which)" if len(commits) > 1 else ""
        parts.append(f"Run {span}, of commit {', '.join(map(_code, commits))}{many}.")
    if early := sum(bool(run.early) for run in report.runs):
        parts.append(f"Ended early: {early:,} of {len(report.runs):,} runs; what they had played counts.")
    if made_by:
        parts.append(f"The page was made by {_code(made_by)}.")
    return f"<p>{' '.join(parts)}</p>" if parts else ""


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def _runs(report: Report) -> str:
    if not report.runs:
        return "<p>The runs did not say when they were, or of what.</p>"
    rows = [[run.layer, run.at, run.commit, run.machine, _extent(run), run.command] for run in report.runs]
    return _table(["layer", "begun", "commit", "machine", "rounds", "command"], rows)


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


def _counts(report: Report, layer: str) -> str:
    counts = [(name, count) for name, count in report.totals[layer].items() if count]
    return f"<h3>{html.escape(layer)}</h3>{_list(counts)}" if counts else ""


def _list(counts: Iterable[tuple[str, float]]) -> str:
    """Names and numbers, in columns."""
    lines = (f"<li><b>{_number(count)}</b> {html.escape(name)}</li>" for name, count in counts)
    return f'<ul class="counts">{"".join(lines)}</ul>'


def _violations(report: Report, layers: Sequence[str]) -> str:
    """A row for each class: there are many, and few layers."""
    further = [name for layer in layers for name in report.violations[layer] if name not in _CLASSES]
    rows: list[list[Any]] = [
        [name, *(report.violations[layer][name] for layer in layers)]
        for name in [*_CLASSES, *dict.fromkeys(further)]
    ]
    rows.append(["failing seeds", *(report.failed[layer] for layer in layers)])
    return _table(["", *layers], rows, judged=True)


def _baseline(report: Report, layer: str) -> str:
    """What RocketMQ did under the same faults; runs from before there was a word for it wrote "(stock's)"."""
    old = " (stock's)"
    broken = Counter(report.violations[layer])
    counts = []
    for name, count in report.totals[layer].items():
        if name.endswith(old):
            broken[name.removesuffix(old)] += count
        else:
            counts.append((name, count))
    rows = [[name, count] for name, count in sorted(broken.items()) if count]
    said = (
        f"<p>What would have been a broken promise of ours, in {report.totals[layer]['rounds']:,} rounds:</p>"
        + _table(["", layer], rows)
        if rows
        else "<p>Nothing that would have been a broken promise of ours.</p>"
    )
    head = f"<h2>For comparison: RocketMQ itself, layer {html.escape(layer)}</h2>"
    why = "<p>A measurement of another program under the same faults; it counts in nothing above.</p>"
    return head + why + said + _list(counts)


def _recoveries(report: Report) -> str:
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
    heads = [
        "layer",
        "fault",
        "times",
        "median s",
        "p99 s",
        "longest s",
        "bytes lost that no promise covered",
    ]
    return _table(heads, rows)


def _figures(report: Report, layers: Sequence[str]) -> str:
    rows = [[layer, name, value] for layer in layers for name, value in report.figures[layer].items()]
    return _table(["layer", "figure", "value"], rows)


def _failures(report: Report, heading: str, layers: Sequence[str]) -> list[str]:
    some = [failure for failure in report.failures if failure.layer in layers]
    left = sum(report.failed[layer] for layer in layers) - len(some)
    if not some and not left:
        return []
    parts = [f"<h2>{html.escape(heading)}</h2>"]
    for failure in some:
        parts.append(
            f"<details><summary>{html.escape(failure.layer)} seed {failure.seed}:"
            f" {html.escape(failure.text.splitlines()[0] if failure.text else '')}</summary>"
            f"<pre>{html.escape(failure.repeat)}\n\n{html.escape(failure.text)}</pre></details>"
        )
    if left:
        parts.append(f"<p>And {left} more.</p>")
    return parts


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, judged: bool = False) -> str:
    head = "".join(f"<th>{html.escape(str(one))}</th>" for one in heads)
    body = "".join("<tr>" + "".join(_cell(one, judged) for one in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any, judged: bool) -> str:
    if isinstance(value, int | float):
        kind = "n bad" if judged and value else "n good" if judged else "n"
        return f'<td class="{kind}">{_number(value)}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


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
