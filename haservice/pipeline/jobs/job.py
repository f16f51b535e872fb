"""What the commands of mqpipeline share: the options before the command's name, and how a command ends.

    @click.command("audit-loss")
    @click.argument("store", …)
    @pass_job
    def command(job: Job, store: Path) -> None:
        spark = job.spark()
        …
        job.verdict(good=not findings)

Each job's module offers its click command as `command`; haservice.pipeline.cli lists them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from haservice.pipeline.java import LOG_LEVEL, OwnJava, kept_aside
from haservice.pipeline.scratch import scratch
from haservice.pipeline.session import session
from haservice.terminal.output import echo, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from haservice.pipeline.jobs.report import Report

# Exit codes besides 0, all is well: cron can tell these apart.
FINDINGS = 1
USAGE = 2
COULD_NOT_RUN = 3


@dataclass(frozen=True, slots=True)
class Job:
    """How the user wants this job to run."""

    name: str = "mqpipeline"
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    output_format: str = "table"

    @property
    def as_json(self) -> bool:
        return self.output_format == "json"

    def spark(self) -> SparkSession:
        """The session; it stops when the command ends.  Raises NoSpark."""
        scratch()  # what killed jobs left goes, wherever this one's Spark runs
        own = "PYSPARK_GATEWAY_PORT" not in os.environ  # else spark-submit has started it
        with kept_aside() if own and LOG_LEVEL not in self.conf else nullcontext():
            spark = session(f"mqpipeline {self.name}", self.master, self.conf)
        click.get_current_context().call_on_close(OwnJava(spark).close if own else spark.stop)
        return spark

    def say(self, result: Mapping[str, Any], text: str) -> None:
        """Writes the job's one result to standard output: an object for a program, `text` for a person."""
        echo(to_json(result) if self.as_json else text)

    def end(self, report: Report, report_to: Path | None) -> NoReturn:
        """Writes the report where the user wants it, prints it, and ends the command by its verdict."""
        if report_to is not None:
            report.write(report_to)
        self.say(report.as_json(), report.as_text())
        self.verdict(good=not report.findings)

    def verdict(self, *, good: bool) -> NoReturn:
        """Ends the command, with exit code 1 unless all is well."""
        click.get_current_context().exit(0 if good else FINDINGS)


pass_job = click.make_pass_decorator(Job)
