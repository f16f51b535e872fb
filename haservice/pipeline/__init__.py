"""The data pipeline: the commit log, and brokers, as Spark sources and sink; and the jobs of mqpipeline.

Importing this package needs no Spark; its sources and jobs do, see haservice.pipeline.session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The module of each format, which offers its class as SOURCE.
FORMATS = {
    "rocketmq-log": "haservice.pipeline.sources.log_source",
    "rocketmq": "haservice.pipeline.sources.broker_source",
}


def register(spark: SparkSession) -> None:
    """Makes the formats "rocketmq-log" and "rocketmq" known to a session."""
    for module in FORMATS.values():
        spark.dataSource.register(importlib.import_module(module).SOURCE)
