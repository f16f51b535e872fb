"""`mqpipeline`: the group of all jobs.

    0   all is well
    1   the job ran, and found something wrong
    2   the command line is wrong
    3   the job could not run, or did not end
    130 the user ended it

A job's module is loaded when the user asks for the job.  So `mqpipeline --help` needs no Spark, and one line
names what a job lacks.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from commitlog.errors import CommitLogError
from haservice.configuration.config import read_yaml
from haservice.errors import ConfigError, HAServiceError
from haservice.pipeline.java import Interrupted, was_interrupted
from haservice.pipeline.jobs.job import COULD_NOT_RUN, USAGE, Job
from haservice.pipeline.session import INSTALL
from haservice.terminal.explain import explain
from haservice.terminal.options import CONTEXT, did_you_mean, version_option

# For each job its module, which offers `command`, and its line in the help.
JOBS: Mapping[str, tuple[str, str]] = {
    "audit-replicas": (
        "haservice.pipeline.jobs.audit_replicas",
        "Compares stores of one log, byte for byte.",
    ),
    "audit-loss": ("haservice.pipeline.jobs.audit_loss", "Holds a producer's ledger against the log."),
    "archive": ("haservice.pipeline.jobs.archive", "Keeps the log as Parquet, by topic and day."),
    "rebuild": ("haservice.pipeline.jobs.rebuild", "Builds consume queues and index files from the log."),
    "replay": ("haservice.pipeline.jobs.replay", "Sends a store's or an archive's messages to a broker."),
    "lag-report": ("haservice.pipeline.jobs.lag_report", "How far slaves lagged, from the brokers' samples."),
}
# Told to users whose workers, which run their own Python, lack something.
LACKING = (
    "\n  workers lack it: install haservice with its extra [spark] on each, and name its Python by "
    "--conf spark.pyspark.python=…,\n  or ship this package with the job by "
    "--conf spark.submit.pyFiles=haservice.zip"
)
GAVE_UP = (
    "Spark has given up: its master does not answer, or has ended the job; is --master right, and up?"
    "\n  --conf spark.log.level=WARN shows what Spark says"
)
# The keys of a job file.
FILE_KEYS = ("job", "arguments", "options", "master", "conf", "format")
MASTER = re.compile(r"local(-cluster)?(\[[\d*, ]+\])?|spark://.+:\d+|yarn|k8s://.+")
MASTERS = "Spark knows local, local[4], local[*], spark://HOST:PORT, yarn and k8s://HOST:PORT"
# Our errors explain themselves to users; other errors need the name of their class.
OURS = re.compile(r"(?:haservice|commitlog)\.[\w.]+: ")
# One that Spark was told to show without its traceback.
WITHOUT_TRACE = re.compile(rf"{OURS.pattern}(.+?)(?:\s+SQLSTATE: \w+)?\s*$", re.M)


class CouldNotRun(click.ClickException):
    """The job could not run: neither a verdict nor a wrong command line."""

    exit_code = COULD_NOT_RUN


class WrongFile(click.ClickException):
    """A job file is wrong, which counts as a wrong command line."""

    exit_code = USAGE


class Jobs(click.Group):
    """Loads a job when the user asks for it, and says in one line why it could not run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*JOBS, *super().list_commands(ctx)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = [(name, one.get_short_help_str(100)) for name, one in sorted(self.commands.items())]
        with formatter.section("Jobs"):
            formatter.write_dl([*((name, line) for name, (_, line) in JOBS.items()), *others])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in JOBS:
            return super().get_command(ctx, cmd_name)
        try:
            found: click.Command = importlib.import_module(JOBS[cmd_name][0]).command
        except ModuleNotFoundError as error:
            raise CouldNotRun(f"{error.name} is not installed\n  {INSTALL}") from None
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"there is no job {args[0]!r}: {_meant(args[0], names)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.UsageError, CouldNotRun, WrongFile, Interrupted):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if was_interrupted(error):
                raise Interrupted("interrupted") from None
            raise CouldNotRun(words_of(error)) from error


def _meant(name: str, known: Collection[str]) -> str:
    """The nearest of the known names, if there is one near, and all of them."""
    hints = (did_you_mean(name, known), f"there are {', '.join(known)}")
    return "  ".join(filter(None, hints))


def words_of(error: BaseException) -> str:
    """What went wrong, for a person."""
    if isinstance(error, click.ClickException):
        said = error.format_message()
    elif isinstance(error, HAServiceError | CommitLogError | OSError):
        said = explain(error)
    else:
        said = said_by_spark(error)
    return "\n  ".join((said, *getattr(error, "__notes__", ())))


def said_by_spark(error: BaseException) -> str:
    """What ended a Spark job, without Java's stack traces: the last Python error, if there is one."""
    text = str(error)
    _, found, trace = text.rpartition("Traceback (most recent call last):\n")
    if found:
        lines = trace.splitlines()
        first = next((number for number, line in enumerate(lines) if line[:1].strip()), 0)
        last = next(
            (number for number, line in enumerate(lines) if number > first and not line.strip()), len(lines)
        )
        said = "\n".join(lines[first:last])
        said = OURS.sub("", said, count=1) if OURS.match(said) else re.sub(r"^(?:\w+\.)+", "", said)
        return said + (LACKING if re.match(r"ModuleNotFoundError: No module named '\w", said) else "")
    if "on a stopped SparkContext" in text:
        return GAVE_UP
    if alone := WITHOUT_TRACE.search(text):
        return alone[1]
    of_java = re.findall(r"^(?:: |Caused by: )(.+)$", text, re.M)
    if of_java:
        return str(re.sub(r"^(?:\w+\.)+", "", of_java[-1]))
    text = text.partition("JVM stacktrace")[0].strip() or "no words"
    return text if text.startswith("[") else f"{type(error).__name__}: {text}"


def settings(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parses any number of K=V."""
    pairs = [value.partition("=") for value in values]
    for name, equals, _value in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE, such as spark.executor.memory=2g")
    return {name: value for name, _, value in pairs}


def known_master(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not MASTER.fullmatch(value):
        raise click.BadParameter(f"{value!r}: {MASTERS}")
    return value


@click.group(cls=Jobs, context_settings=CONTEXT)
@version_option
@click.option(
    "--master",
    metavar="URL",
    callback=known_master,
    help="As in spark-submit: local[4], spark://host:7077, yarn, k8s://…",
)
@click.option(
    "--conf", multiple=True, metavar="K=V", callback=settings, help="A setting of Spark; repeatable."
)
@click.option(
    "-f",
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="The result for a person, or for a program.",
)
@click.pass_context
def main(ctx: click.Context, master: str | None, conf: dict[str, str], output_format: str) -> None:
    """Runs Spark jobs over commit logs and brokers, on this machine or on a cluster.

    \b
      mqpipeline audit-replicas /data/broker-a /data/broker-a-s
      mqpipeline --master spark://host:7077 archive /data/broker-a s3a://bucket/messages
      mqpipeline run nightly.yaml

    `mqpipeline JOB --help` explains a job.  Exit codes, for cron: 0 all is well, 1 the job found something
    wrong, 2 the command line or the job file is wrong, 3 the job could not run, 130 Ctrl-C ended it.

    Only the result and what went wrong are written.  What Spark has to say, too, is told by
    --conf spark.log.level=WARN.
    """
    ctx.obj = Job(ctx.invoked_subcommand or "", master, conf, output_format)


@main.command("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def run(ctx: click.Context, file: Path) -> None:
    """Runs the job that a YAML file describes.

    \b
      job: archive
      arguments: [/data/broker-a, /archive]
      options:
        broker-name: broker-a           # --broker-name broker-a
        accept-data-loss: true          # --accept-data-loss; false: not
      master: local[4]
      conf:
        spark.driver.memory: 2g
      format: json

    Only `job` has to be there.  A repeatable option may have a list of values.  What the command line says
    of --master, --conf and -f goes before the file.
    """
    given: Job = ctx.obj
    parent = ctx.find_root()
    try:
        described = read_job(file)
        name = described["job"]
        command = main.get_command(ctx, name)
        assert command is not None
        arguments = list(arguments_of(file, described, command))
        said = parent.get_parameter_source("output_format")
        parent.obj = Job(
            name,
            given.master or described.get("master"),
            {**_texts(described.get("conf", {})), **given.conf},
            given.output_format
            if said is not click.core.ParameterSource.DEFAULT
            else described.get("format", given.output_format),
        )
        with command.make_context(name, arguments, parent=parent) as job_ctx:
            command.invoke(job_ctx)
    except ConfigError as error:
        if error.source != str(file):
            raise
        raise WrongFile(str(error)) from None
    except click.UsageError as error:
        raise WrongFile(f"{file}: {error.format_message()}") from None


def read_job(file: Path) -> dict[str, Any]:
    """Reads a job file, and checks what is the same for every job.  Raises ConfigError."""

    def refuse(key: str, reason: str) -> ConfigError:
        return ConfigError(str(file), 0, key, reason)

    found = read_yaml(file)
    if not isinstance(found, dict) or not isinstance(found.get("job"), str):
        raise refuse("job", f"names the job: one of {', '.join(JOBS)}")
    for key in found:
        if key not in FILE_KEYS:
            raise refuse(str(key), f"no key of a job file; those are {', '.join(FILE_KEYS)}")
    if found["job"] not in JOBS:
        raise refuse("job", f"there is no job {found['job']!r}: {_meant(found['job'], JOBS)}")
    for key, kind, words in (
        ("arguments", list, "a list, such as [/data/broker-a]"),
        ("options", dict, "a mapping of option to value, such as topic: Orders"),
        ("conf", dict, "a mapping of Spark's names to values"),
        ("master", str, "a text, such as local[4]"),
    ):
        if not isinstance(found.get(key, kind()), kind):
            raise refuse(key, words)
    if not MASTER.fullmatch(found.get("master", "local")):
        raise refuse("master", f"{found['master']!r}: {MASTERS}")
    if found.get("format", "table") not in ("table", "json"):
        raise refuse("format", "table or json")
    return found


def arguments_of(file: Path, described: Mapping[str, Any], command: click.Command) -> Iterator[str]:
    """A job file as a command line: options, then arguments.  Raises ConfigError."""
    known = {
        name.removeprefix("--"): one
        for one in command.params
        if isinstance(one, click.Option)
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("--")
    }
    for name, value in described.get("options", {}).items():
        try:
            yield from _option(str(name), value, known)
        except ValueError as error:
            raise ConfigError(str(file), 0, f"options: {name}", str(error)) from None
    yield "--"
    yield from map(str, described.get("arguments", []))


def _option(name: str, value: Any, known: Mapping[str, click.Option]) -> list[str]:
    """An option as on a command line.  Raises ValueError."""
    one = known.get(name)
    if one is None:
        raise ValueError(f"no option of this job: {_meant(name, known)}")
    if one.is_flag:
        if not isinstance(value, bool):
            raise ValueError(f"is a flag: true or false, not {value!r}")
        if f"--{name}" in one.secondary_opts:
            return [f"--{name}"] if value else []
        return [f"--{name}"] if value else one.secondary_opts[:1]
    if isinstance(value, list) and not one.multiple:
        raise ValueError(f"takes one value, not {len(value)}")
    values = value if isinstance(value, list) else [value]
    for each in values:
        if each is None or isinstance(each, bool | dict | list):
            raise ValueError(f"takes a text or a number, not {each!r}")
    return [word for each in values for word in (f"--{name}", str(each))]


def _texts(values: Mapping[Any, Any]) -> dict[str, str]:
    """Values as Spark writes them: true, not True."""
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


if __name__ == "__main__":  # for spark-submit, which takes a file
    main()
