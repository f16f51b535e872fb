"""docs/pipeline.md does what it says: its console blocks are run, in order, and print what stands there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from commitlog.store import Store
from tests.pipeline.filled import close, copied, options
from tests.pipeline.test_audit_loss import consumed_of, key, ledger_of
from tests.support.messages import STORE_HOST, Clock, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
# Of the jobs that need nothing but stores and files.
JOBS = ("audit-replicas", "audit-loss", "archive", "rebuild")
# The index files of the test's stores are small.
WITH_SIZES = ("audit-replicas", "rebuild")
# What lies in the test's directory: Spark has a working directory of its own.
PATHS = ("broker-a", "broker-a-s", "sent.jsonl", "got.jsonl", "archive", "report", "rebuilt")


def commands() -> Iterator[tuple[list[str], str]]:
    """Arguments and the line that follows."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S):
        for command, said in re.findall(r"^\$ mqpipeline (.*)\n(.*)$", block, re.M):
            if shlex.split(command)[0] in JOBS:
                yield shlex.split(command), said


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    clock = Clock()
    store = Store.open(options(tmp_path / "broker-a"), store_host=STORE_HOST, clock_ms=clock)
    for number in range(40):
        store.log.append(message(b"x" * 50, "Orders", number % 2, properties={"UNIQ_KEY": key(number)}))
        clock.now_ms += 10
    records = close(store)
    copied(tmp_path / "broker-a", tmp_path / "broker-a-s")
    for name, lines in (("sent", ledger_of(records)), ("got", consumed_of(records))):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_of_the_page_run_and_say_what_it_says(
    spark: SparkSession, stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs import job

    monkeypatch.setattr(job.Job, "spark", lambda _: spark)
    seen = set()
    for arguments, said in commands():
        sizes = ["--index-slots", "61", "--index-entries", "97"] if arguments[0] in WITH_SIZES else []
        found = [
            str(stores / one) if one in PATHS and before != "--broker-name" else one
            for before, one in pairwise(arguments)
        ]
        done = CliRunner().invoke(main, [arguments[0], *found, *sizes])
        assert done.exit_code == 0, (arguments, done.output)
        wanted = "[^\n]*".join(map(re.escape, said.split("…")))
        assert re.match(wanted, done.output.strip().splitlines()[0]), (arguments, done.output)
        seen.add(arguments[0])
    assert seen == set(JOBS)
    assert (stores / "report" / "report.html").stat().st_size > 1000
    for block in re.findall(r"```python\n(.*?read_archive.*?)```", PAGE, re.S):
        exec(block.replace('"archive"', repr(str(stores / "archive"))), {"spark": spark})
