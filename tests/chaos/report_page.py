"""The report page: one self-contained HTML file, without JavaScript, and its plots as PNG and SVG beside it.

    counts by layer · broken promises by class · recovery and loss by kind of fault · timelines · failures

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
from tests.chaos.report import Report, Series, Span

PAGE = "report.html"
_WIDTH_INCHES, _ROW_INCHES = 10.0, 2.2
_DPI = 110
# Every class has its column, so that a zero is seen to be one; then what only some layers have.
_CLASSES = [violation.value for violation in Violation]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: .8rem 0; } td, th { padding: .25rem .7rem;
border: 1px solid #ddd; }
th { background: #f5f5f5; text-align: left; font-weight: 600; } td.n { text-align: right;
font-variant-numeric: tabular-nums; } td.bad { background: #fbd5d5; font-weight: 600; }
td.good { color: #888; } img { max-width: 100%; } pre { background: #f7f7f7; padding: .7rem; overflow-x: auto;
font-size: 12px; } p.verdict { font-size: 1.1rem; font-weight: 600; } p.verdict.good { color: #1b6b2f; }
p.verdict.bad { color: #a11515; }
"""


def write_page(
    report: Report, directory: Path, *, title: str = "What the pair survived", made_by: str = ""
) -> Path:
    """Writes report.html and the plots into `directory`; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    plots = list(_plots(report, directory))
    layers = report.layers
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>",
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>",
        _verdict(report),
        f"<p>Made by <code>{html.escape(made_by)}</code>.</p>" if made_by else "",
        "<h2>What was done</h2>",
        _counts(report, layers),
        "<h2>Broken promises</h2>",
        _violations(report, layers),
    ]
    if report.recoveries:
        parts += ["<h2>Recovery, by kind of fault</h2>", _recoveries(report)]
    if plots:
        parts.append("<h2>Pictures</h2>")
        parts += [
            f'<h3>{html.escape(name)}</h3><img alt="{html.escape(name)}" src="data:image/png;base64,{data}">'
            for name, data in plots
        ]
    parts += ["<h2>Figures</h2>", _figures(report, layers)]
    if report.missing:
        rows = [[layer, why] for layer, why in report.missing.items()]
        parts += ["<h2>What did not run</h2>", _table(["layer", "why"], rows)]
    parts += _failures(report)
    page = directory / PAGE
    page.write_text("\n".join(part for part in parts if part))
    return page


# -- text and tables -----------------------------------------------------------------------------------


def _verdict(report: Report) -> str:
    broken = sum(counts.total() for counts in report.violations.values())
    failed = report.failed.total()
    if report.ok:
        return '<p class="verdict good">No promise was broken, and no run failed.</p>'
    return f'<p class="verdict bad">{broken} broken promises, {failed} failing seeds.</p>'


def _counts(report: Report, layers: Sequence[str]) -> str:
    names = list(dict.fromkeys(name for layer in layers for name in report.totals[layer]))
    rows = [[layer, *(report.totals[layer][name] or "" for name in names)] for layer in layers]
    return _table(["layer", *names], rows)


def _violations(report: Report, layers: Sequence[str]) -> str:
    further = [name for layer in layers for name in report.violations[layer] if name not in _CLASSES]
    names = [*_CLASSES, *dict.fromkeys(further), "failing seeds"]
    rows = []
    for layer in layers:
        counts = Counter(report.violations[layer])
        counts["failing seeds"] = report.failed[layer]
        rows.append([layer, *(counts[name] for name in names)])
    return _table(["layer", *names], rows, judged=True)


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


def _failures(report: Report) -> list[str]:
    if not report.failures:
        return []
    parts = ["<h2>Failing seeds</h2>"]
    for failure in report.failures:
        parts.append(
            f"<details><summary>{html.escape(failure.layer)} seed {failure.seed}:"
            f" {html.escape(failure.text.splitlines()[0] if failure.text else '')}</summary>"
            f"<pre>{html.escape(failure.repeat)}\n\n{html.escape(failure.text)}</pre></details>"
        )
    left = report.failed.total() - len(report.failures)
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
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
        return f'<td class="{kind}">{text}</td>'
    return f"<td>{html.escape(str(value))}</td>"


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
        yield _saved(_timeline(all_, spans[layer]), directory, f"{layer}: timeline")
    if report.recoveries:
        yield _saved(_recovery_plot(report), directory, "recovery by kind of fault")


def _figure(rows: int, height_inches: float) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, 1, sharex=True, squeeze=False, figsize=(_WIDTH_INCHES, height_inches), layout="constrained"
    )
    return figure, [row[0] for row in axes]


def _timeline(all_: Sequence[Series], spans: Sequence[Span]) -> Any:
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
    axes[-1].set_xlabel("seconds")
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
