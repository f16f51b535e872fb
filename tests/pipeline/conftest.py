"""Fixtures of the pipeline's tests: one Spark for the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.brokers import Cluster
from tests.support.quick_java import QUICK_JAVA_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
# Python processes that Spark starts find this clone, whatever is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

CONF = {
    "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}
# Spark waits 10 s for each Python process that it starts, and no key changes that: too short where much else runs.
SPARK_S_TOO_SHORT = "Timed out while waiting for the Python worker to connect back"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that only Spark's own limit ended is tried again.  The hook is given the items of all directories."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.flaky(reruns=3, only_rerun=[SPARK_S_TOO_SHORT]))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two threads.  Tests that take it are skipped where Java, pyspark or pyarrow are missing."""
    from haservice.pipeline.session import NoSpark, session

    warehouse = tmp_path_factory.mktemp("warehouse")
    try:
        made = session("tests", "local[2]", {**CONF, "spark.sql.warehouse.dir": str(warehouse)})
    except NoSpark as missing:
        pytest.skip(str(missing))
    yield made
    made.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A nameserver, and brokers as a test starts them."""
    made = Cluster(tmp_path)
    yield made
    made.close()
