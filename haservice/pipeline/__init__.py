"""The data pipeline: Spark sources and a sink for the commit log and for brokers, and the jobs of mqpipeline.

Importing this package needs no Spark.  Its sources and jobs need it, see haservice.pipeline.session.
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
