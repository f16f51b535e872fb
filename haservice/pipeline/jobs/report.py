"""What a job found, as JSON for machines and as one page for people: a verdict, figures, tables, plots.

    exit code    0 no findings | 1 findings        (2 usage, 3 could not run: the command's)

The page, report.html.jinja beside this, is one HTML file without JavaScript that loads nothing.  Plots are
SVG inside it, drawn by matplotlib.  Without matplotlib the page has its tables and says so.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

try:
    import matplotlib.figure as _figure
except ImportError:  # a cluster's image without it: reports do without plots
    _figure = None  # type: ignore[assignment]

JSON_NAME = "report.json"
PAGE_NAME = "report.html"
# The page cuts longer tables; the JSON has them whole.
PAGE_ROWS_MAX = 200
# How many findings a terminal shows.
TEXT_NAMED_MAX = 10

GOOD, BAD, QUIET, MARK = "#2c7a4b", "#b3261e", "#b9bec6", "#33588c"
PALETTE = (MARK, "#c77d1e", "#5b8c5a", "#8c5a86", "#4a9aa5", "#7a6a4f")


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of plain values.  `judged`: columns in which anything but 0 and blank is bad."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    judged: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page: words, then a table, then pictures (SVG text, as svg() makes them)."""

    heading: str
    text: str = ""
    table: ReportTable | None = None
    plots: Sequence[str] = ()


@dataclass(slots=True)
class Report:
    """A verdict and what it rests on.

    `verdict` is one sentence, `findings` how many things are wrong, `figures` the few numbers that come
    first, `named` a line for each of the first findings.
    `data` is the whole result for machines, in plain values; `sections` is what people read.
    """

    job: str
    title: str
    verdict: str
    findings: int
    figures: Mapping[str, Any] = field(default_factory=dict)
    named: Sequence[str] = ()
    sections: Sequence[PageSection] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    made_ms: int = field(default_factory=lambda: int(datetime.now(UTC).timestamp() * 1000))

    @property
    def exit_code(self) -> int:
        return 1 if self.findings else 0

    def as_json(self) -> dict[str, Any]:
        """The report in plain values; every job has the same first keys."""
        return {
            "job": self.job,
            "ok": not self.findings,
            "verdict": self.verdict,
            "findings": self.findings,
            "madeMs": self.made_ms,
            "figures": dict(self.figures),
            **self.data,
        }

    def as_text(self) -> str:
        """A few lines for a terminal."""
        lines = [f"{self.job}: {self.verdict}"]
        width = max((len(name) for name in self.figures), default=0)
        lines += [f"  {name:<{width}}  {_words(value)}" for name, value in self.figures.items()]
        lines += [f"  - {one}" for one in self.named[:TEXT_NAMED_MAX]]
        if self.findings > TEXT_NAMED_MAX or len(self.named) > TEXT_NAMED_MAX:
            lines.append("  … and more: --report DIR and -f json have them")
        return "\n".join(lines)

    def as_html(self) -> str:
        """The page."""
        return _template().render(
            report=self,
            made=datetime.fromtimestamp(self.made_ms / 1000, UTC),
            rows_max=PAGE_ROWS_MAX,
            pictures=_figure is not None,
        )

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Writes report.json and report.html into `directory`, which it makes.  Returns their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        data, page = directory / JSON_NAME, directory / PAGE_NAME
        data.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False, default=str) + "\n")
        page.write_text(self.as_html())
        return data, page


def write_figures(job: str, result: Mapping[str, Any], text: str, directory: Path | None) -> None:
    """Writes the report of a job whose result is a few figures, if the user wants one.  `corrupt` and `crcWrong`
    of a result are findings.
    """
    if directory is None:
        return
    plain = {name: value for name, value in result.items() if name not in ("job", "ok")}
    figures = {name: value for name, value in plain.items() if isinstance(value, int | float)}
    findings = sum(int(plain.get(name, 0)) for name in ("corrupt", "crcWrong"))
    title = f"{job} of {Path(str(plain.get('store', plain.get('source', '')))).name}"
    verdict = f"{text[:1].upper()}{text[1:]}".replace("\n", "; ") + "."
    Report(job, title, verdict, findings, figures, data=plain).write(directory)


@functools.cache
def _template() -> Template:
    # Spark's workers import this module too, and make no pages.
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    pages = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["words"] = _words
    return pages.get_template("report.html.jinja")


def _words(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return str(value)


def size_words(size: float) -> str:
    """Bytes in the unit that reads best: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


# -- pictures --------------------------------------------------------------------------------------


def svg(draw: Callable[[Figure], None], *, width: float = 10.0, height: float = 3.0) -> str:
    """What `draw` puts on a figure of this size in inches, as SVG for a page; empty without matplotlib."""
    if _figure is None:
        return ""
    figure = _figure.Figure(figsize=(width, height), layout="constrained")
    draw(figure)
    for axes in figure.axes:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    out = io.StringIO()
    # Without a date the same data give the same bytes.
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def lines_plot(
    series: Mapping[str, tuple[Sequence[Any], Sequence[float]]],
    *,
    ylabel: str,
    xlabel: str = "",
    log_scale: bool = False,
    height: float = 3.0,
) -> str:
    """Named lines (x values, y values); x may be datetimes."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (name, (xs, ys)) in enumerate(series.items()):
            axes.plot(xs, ys, label=name, color=PALETTE[number % len(PALETTE)], linewidth=1.3)
        axes.set_ylabel(ylabel)
        axes.set_xlabel(xlabel)
        axes.grid(axis="y", color="#e4e7eb", linewidth=0.7)
        axes.set_axisbelow(True)
        if log_scale:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        if len(series) > 1:
            axes.legend(frameon=False, ncols=min(len(series), 4), loc="upper left")

    return svg(draw, height=height)


def bars_plot(values: Mapping[str, float], *, xlabel: str, bad: bool = False) -> str:
    """One horizontal bar per name, with its value beside it."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = list(values)[::-1]
        bars = axes.barh(names, [values[name] for name in names], color=BAD if bad else MARK, height=0.62)
        axes.locator_params(axis="x", integer=True)
        axes.bar_label(bars, labels=[f" {_words(values[name])}" for name in names], fontsize=9)
        axes.set_xlabel(xlabel)

    return svg(draw, height=0.8 + 0.36 * len(values))


def histogram_plot(
    edges: Sequence[float],
    counts: Sequence[int],
    *,
    xlabel: str,
    marks: Mapping[str, float] | None = None,
    log_scale: bool = False,
) -> str:
    """Counts between edges (one more of those), with named places marked."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.stairs(counts, edges, fill=True, color=MARK, alpha=0.85)
        for name, place in (marks or {}).items():
            axes.axvline(place, color=BAD, linewidth=1, linestyle="--")
            axes.annotate(
                name, (place, 1), xycoords=("data", "axes fraction"), ha="left", va="top", fontsize=8
            )
        if log_scale:
            axes.set_xscale("log")
        axes.set_xlabel(xlabel)
        axes.set_ylabel("count")

    return svg(draw)


def strips_plot(
    strips: Mapping[str, Sequence[tuple[float, float, str]]], *, xlabel: str, legend: Mapping[str, str]
) -> str:
    """One strip per name, of pieces (begin, end, colour); `legend` says what the colours mean."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = list(strips)[::-1]
        # A thin piece has an edge of its own colour, so that it is visible.
        for row, name in enumerate(names):
            for begin, end, colour in strips[name]:
                axes.broken_barh(
                    [(begin, end - begin)], (row - 0.32, 0.64), facecolors=colour, edgecolor=colour
                )
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel(xlabel)
        axes.margins(x=0.01)
        handles = [axes.broken_barh([], (0, 0), facecolors=colour) for colour in legend.values()]
        axes.legend(
            handles, list(legend), frameon=False, ncols=len(legend), loc="lower left", bbox_to_anchor=(0, 1)
        )

    return svg(draw, height=1.3 + 0.45 * len(strips))
