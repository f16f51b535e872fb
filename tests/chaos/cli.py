"""scripts/chaos: runs layers of the harness, and makes the report page.

    scripts/chaos sim                                     as many rounds as the short run of the tests has
    scripts/chaos --rounds 5000 --seed 1 sim              seeds 1 … 5000
    scripts/chaos --rounds 1 --seed 4711 sim              one seed again
    scripts/chaos --rounds 20 processes --only flips      rounds of one kind
    scripts/chaos --rounds 300 --jobs 6 --report DIR processes --resume
                                                          six at a time; called again, it goes on
    scripts/chaos --rounds 20 auto --coordinator zookeeper
    scripts/chaos --report DIR all                        every layer, and DIR/report.html
    scripts/chaos page DIR…                               the page of earlier runs together

A layer is a module with `run(rounds, seed, report)`; it is imported when it is to run, so that one whose
libraries or rights are missing stops no other.  The exit code is 1 if a promise was broken or a run failed.
SIGTERM and Ctrl-C end a run early: what it has played is told, and the page says how much that was.
"""

from __future__ import annotations

import importlib
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from haservice.terminal.options import CONTEXT, version_option
from tests.chaos.early import ending_on_sigterm, heed_interrupts, reason
from tests.chaos.report import Ran, Report


class Layer(NamedTuple):
    """Where a layer is, what it does, and how many rounds a short run has."""

    module: str
    rounds: int
    help: str


LAYERS = {
    "sim": Layer("tests.chaos.sim", 200, "Master, slaves and clients on virtual time; a round is a seed."),
    "failover": Layer(
        "tests.chaos.failover_sim", 1000, "Failover by a coordinator, on virtual time; a round is a seed."
    ),
    "flapping": Layer("tests.chaos.failover_flapping", 3, "A day of links that flap, on virtual time."),
    "dledger": Layer(
        "tests.chaos.dledger_sim",
        300,
        "DLedger groups of three and five, on virtual time; a round is a seed.",
    ),
    "crash": Layer(
        "tests.chaos.crash_points", 300, "A stop at every change of the disk; a round is a state."
    ),
    "power": Layer("tests.chaos.power", 3, "Real processes on a disk that is cut off; a round is a cut."),
    "processes": Layer("tests.chaos.processes", 2, "Real brokers and clients under faults."),
    "auto": Layer("tests.chaos.auto", 2, "Brokers that fail over by themselves, with a real coordinator."),
    "groups": Layer(
        "tests.chaos.groups", 2, "Groups of three and five brokers on DLedger; each second round cuts power."
    ),
    "advice": Layer(
        "tests.chaos.advice",
        1,
        "An operator does what check advises after troubles of brokers and their stores.",
    ),
    "quiet": Layer(
        "tests.chaos.quiet",
        450,
        "A wait, an effect, a thread or an answer breaks quietly in real brokers; a round is one of them.",
    ),
    "strangers": Layer(
        "tests.chaos.strangers",
        52,
        "A stranger of each kind beside a well-behaved sender: memory, CPU, the worst send; a round is one of them.",
    ),
    "stock": Layer("tests.chaos.stock_processes", 2, "The same with RocketMQ 4.9.8, for its figures."),
    "timing": Layer("tests.chaos.timing", 3, "How soon it goes on after a fault; a round is one of each."),
    "fuzz": Layer(
        "tests.chaos.fuzz", 20_000, "Every parser with bytes that nobody meant; a round is a case."
    ),
    "native": Layer("tests.chaos.native", 200_000, "The C core alone, under sanitizers; a round is a case."),
    "bank": Layer("tests.chaos.bank", 1, "Old bugs put back, each of which has to be caught."),
}
GIT_S = 10.0
JOBS_MAX = 8 * max(1, os.cpu_count() or 1)
_BAR_CHARACTERS = 24
# A bar on a terminal moves so often; elsewhere a line is written so often.
_TERMINAL_S, _LINE_S = 0.2, 15.0


class Progress:
    """A bar with a rate, one line per layer; plain lines, seldom, where no terminal is."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._layer = ""
        self._began_s = self._shown_s = 0.0

    def __call__(self, layer: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if layer != self._layer:
            self._layer, self._began_s, self._shown_s = layer, now_s, 0.0
        last = done >= total
        if not last and now_s - self._shown_s < (_TERMINAL_S if self._terminal else _LINE_S):
            return
        self._shown_s = now_s
        elapsed_s = max(now_s - self._began_s, 1e-6)
        filled = int(_BAR_CHARACTERS * min(1.0, done / total)) if total else 0
        bar = "#" * filled + "." * (_BAR_CHARACTERS - filled)
        rate = done / elapsed_s
        speed = f"{rate:,.1f} a second" if rate >= 1 else f"{rate * 3600:,.0f} an hour"
        text = f"{layer:<10} [{bar}] {done:,} of {total:,}, {speed}, {elapsed_s:.0f} s"
        click.echo(("\r" if self._terminal else "") + text, err=True, nl=last or not self._terminal)


class Run(NamedTuple):
    """The options before the layer."""

    rounds: int | None
    seed: int
    jobs: int
    directory: Path | None
    options: Mapping[str, Any] = MappingProxyType({})
    """Of one layer's run()."""


def run_layer(name: str, run: Run, report: Report) -> None:
    """Runs one layer; an absent one is noted as that."""
    layer = LAYERS[name]
    try:
        module = importlib.import_module(layer.module)
    except ImportError as error:
        missing = error.name or str(error)
        report.absent(name, f"{missing} is not there")
        click.echo(f"{name}: left out, {missing} is not there", err=True)
        return
    rounds = run.rounds if run.rounds is not None else layer.rounds
    began_s = time.monotonic()
    report.progress(name, 0, rounds)
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    report.ran(Ran(name, at, commit(), machine(), command_line(), run.seed, rounds=rounds))
    early = ""
    try:
        module.run(rounds, run.seed, report, **run.options)
    except BaseException as error:
        early = reason(error)
        if isinstance(error, Exception):
            report.failure(name, run.seed, f"the layer itself failed: {type(error).__name__}: {error}")
        raise
    finally:
        report.add(name, "seconds", round(time.monotonic() - began_s))
        report.over(name, early)


def commit() -> str:
    """Of the checkout that this is: a short hash, and whether files differ from it."""
    words = ["git", "-C", str(Path(__file__).parents[2]), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def machine() -> str:
    return f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"


def command_line() -> str:
    return shlex.join(["scripts/chaos", *sys.argv[1:]])


def summary(report: Report) -> list[str]:
    """What a run comes to, as lines for a terminal."""
    lines = []
    for layer in report.layers:
        counts = ", ".join(f"{value:,} {name}" for name, value in report.totals[layer].items())
        broken = ", ".join(f"{count} {name}" for name, count in report.violations[layer].items() if count)
        failed = f"{report.failed[layer]} seeds failed" if report.failed[layer] else ""
        lines.append(f"{layer}: {counts or 'nothing counted'}; {broken or failed or 'no promise broken'}")
    for run in report.runs:
        if run.early:
            lines.append(
                f"{run.layer}: ended early by {run.early}, {run.done:,} of {run.rounds:,} rounds ran"
            )
    for failure in report.failures:
        lines += [
            f"\n{failure.layer} seed {failure.seed} FAILED: {failure.text}",
            f"  repeat: {failure.repeat}",
        ]
    left = report.failed.total() - len(report.failures)
    if left:
        lines.append(f"and {left} failing seeds more")
    return lines


def _run(context: click.Context, names: list[str]) -> None:
    run: Run = context.obj
    report = Report(run.directory, progress=Progress(), jobs=run.jobs)
    heed_interrupts()
    with ending_on_sigterm():
        try:
            for name in names:
                run_layer(name, run, report)
        finally:
            _told(report, run.directory)
    if not report.ok:
        context.exit(1)
    if not report.layers:
        raise click.ClickException("nothing ran")


def _told(report: Report, directory: Path | None) -> None:
    """A summary here, and the page of all that the directory has."""
    report.close()
    for line in summary(report):
        click.echo(line)
    if directory is not None:
        _page(Report.load(directory), directory)


def _page(report: Report, directory: Path) -> None:
    from tests.chaos.report_page import write_page

    click.echo(f"report: {write_page(report, directory, made_by=command_line())}")


@click.group(context_settings=CONTEXT)
@version_option
@click.option("--rounds", type=click.IntRange(min=1), help="How many; each layer has its own short number.")
@click.option("--seed", default=1, show_default=True, help="Of the first round; the next one has the next.")
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(1, JOBS_MAX),
    help="Processes; rounds of `processes` wait a lot, and several a core gain.",
)
@click.option("--report", "directory", type=click.Path(path_type=Path), help="Where the report page goes.")
@click.pass_context
def main(context: click.Context, rounds: int | None, seed: int, jobs: int, directory: Path | None) -> None:
    """Faults by the thousand, and a checker that no promise was broken by any of them."""
    context.obj = Run(rounds, seed, jobs, directory)


def _command(name: str) -> click.Command:
    @click.pass_context
    def command(context: click.Context) -> None:
        _run(context, [name])

    short = f" ({LAYERS[name].rounds:,} rounds)"
    return click.Command(name, callback=command, help=LAYERS[name].help + short)


for _name in LAYERS:
    if _name not in ("advice", "auto", "groups", "processes", "quiet", "strangers"):
        main.add_command(_command(_name))


@main.command("processes", help=LAYERS["processes"].help + f" ({LAYERS['processes'].rounds} rounds)")
@click.option(
    "--only", multiple=True, metavar="KIND", help="Rounds of this kind; more than once for several."
)
@click.option("--resume", is_flag=True, help="Without the seeds that runs with this --report have played.")
@click.option("--kinds", is_flag=True, help="Say what kinds there are.")
@click.pass_context
def processes(context: click.Context, only: tuple[str, ...], resume: bool, kinds: bool) -> None:
    from tests.chaos.proc_kinds import KINDS

    if kinds:
        for name, kind in KINDS.items():
            click.echo(f"{name:<14}{kind.help}")
        return
    if unknown := [name for name in only if name not in KINDS]:
        raise click.UsageError(f"no kind {unknown[0]}; there are {', '.join(KINDS)}")
    if resume and context.obj.directory is None:
        raise click.UsageError("--resume needs --report DIR before the layer")
    context.obj = context.obj._replace(options={"only": only, "resume": resume})
    _run(context, ["processes"])


def _only_faults(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a layer whose rounds may be those of some faults only."""
    wrapped = click.pass_context(command)
    for option in (
        click.option("--faults", is_flag=True, help="Say what faults there are."),
        click.option(
            "--only", multiple=True, metavar="FAULT", help="This fault; more than once for several."
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


@main.command("auto", help=LAYERS["auto"].help + f" ({LAYERS['auto'].rounds} rounds)")
@click.option("--coordinator", default="etcd", show_default=True, type=click.Choice(["etcd", "zookeeper"]))
@_only_faults
def auto(context: click.Context, coordinator: str, only: tuple[str, ...], faults: bool) -> None:
    from tests.chaos.auto_faults import ALL_FAULTS

    _run_faults(context, "auto", list(ALL_FAULTS), faults, only, coordinator=coordinator)


@main.command("groups", help=LAYERS["groups"].help + f" ({LAYERS['groups'].rounds} rounds)")
@_only_faults
def groups(context: click.Context, only: tuple[str, ...], faults: bool) -> None:
    from tests.chaos.groups import ALL_FAULTS

    _run_faults(context, "groups", list(ALL_FAULTS), faults, only)


@main.command("advice", help=LAYERS["advice"].help + f" ({LAYERS['advice'].rounds} rounds)")
@_only_faults
def advice(context: click.Context, only: tuple[str, ...], faults: bool) -> None:
    from tests.chaos.advice_faults import TROUBLES

    _run_faults(context, "advice", list(TROUBLES), faults, only)


def _only_texts(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a layer that plays all its rounds, or those whose name has a text."""
    wrapped = click.pass_context(command)
    for option in (
        click.option("--faults", is_flag=True, help="Say what rounds there are."),
        click.option(
            "--only",
            multiple=True,
            metavar="TEXT",
            help="Rounds whose name has this; more than once for several.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


@main.command("quiet", help=LAYERS["quiet"].help + " (all of them, or --rounds so many)")
@_only_texts
def quiet(context: click.Context, only: tuple[str, ...], faults: bool) -> None:
    from tests.chaos.quiet import all_rounds

    _run_named(context, "quiet", [str(one) for one in all_rounds(only)], faults, only)


@main.command("strangers", help=LAYERS["strangers"].help + " (all of them, or --rounds so many)")
@_only_texts
def strangers(context: click.Context, only: tuple[str, ...], faults: bool) -> None:
    from tests.chaos.strangers import all_rounds

    _run_named(context, "strangers", [str(one) for one in all_rounds(only)], faults, only)


def _run_named(
    context: click.Context, layer: str, known: list[str], faults: bool, only: tuple[str, ...]
) -> None:
    if not known:
        raise click.UsageError(f"no round has {' or '.join(only)} in its name; --faults says what there are")
    if faults:
        click.echo("\n".join(known))
        return
    context.obj = context.obj._replace(options={"only": only})
    _run(context, [layer])


def _run_faults(
    context: click.Context, layer: str, known: list[str], faults: bool, only: tuple[str, ...], **options: str
) -> None:
    if faults:
        click.echo("\n".join(known))
        return
    if unknown := [name for name in only if name not in known]:
        raise click.UsageError(f"no fault {unknown[0]}; there are {'; '.join(known)}")
    context.obj = context.obj._replace(options={**options, "only": only})
    _run(context, [layer])


@main.command("all")
@click.pass_context
def every(context: click.Context) -> None:
    """Every layer, one after the other; one that is missing is named."""
    _run(context, list(LAYERS))


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.pass_context
def page(context: click.Context, runs: tuple[Path, ...]) -> None:
    """Makes the page of earlier runs: directories, or their report.jsonl files."""
    run: Run = context.obj
    _page(Report.load(*runs), run.directory or (runs[0] if runs[0].is_dir() else runs[0].parent))


if __name__ == "__main__":
    main()
