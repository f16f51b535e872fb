"""docs/pipeline.md again: the log as a table and as a stream."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from haservice.pipeline import session
from haservice.pipeline.decode.schema import NAMES
from haservice.pipeline.sources.options import LogSourceOptions
from tests.pipeline.filled import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
CHAPTER = PAGE.split("## The log as a table")[1].split("## Brokers as a table")[0]


def test_the_examples_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = fill(tmp_path / "broker-a", 60)
    monkeypatch.setattr(session, "session", lambda _: spark)
    blocks = re.findall(r"```python\n(.*?)```", CHAPTER, re.S)
    assert len(blocks) == 4
    scope: dict[str, object] = {}
    for block in blocks:
        exec(re.sub(r'"(broker-a|checkpoint|rows)"\)', rf'"{tmp_path}/\1")', block), scope)
    orders = sum(record.topic == "Orders" for record in records)
    shown = capsys.readouterr().out
    assert sum(map(int, re.findall(r"^\| +\d+\| +(\d+)\|$", shown, re.M))) == orders > 0
    counts = re.findall(r"^\|.+\|.+\| +(\d+)\| +\d+\| +\d+\|$", shown, re.M)
    assert sum(map(int, counts)) == len(records)
    assert spark.read.parquet(str(tmp_path / "rows")).count() == len(records)


def test_the_tables_name_every_column_and_every_option() -> None:
    columns, options = CHAPTER.split("| option |")
    named = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in columns.splitlines() if "|" in line))
    )
    assert named == set(NAMES)
    named = set(
        re.findall(
            r"`(\w+)`", "".join(line.split("|")[1] for line in options.splitlines() if line.startswith("| `"))
        )
    )
    known = {field.metadata["key"] for field in LogSourceOptions.__dataclass_fields__.values()}
    assert named == known - {"path", "paths", "maxOffsetsPerTrigger"}
