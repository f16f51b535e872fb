"""A stream reader that says, when it is asked for anything, why there is none.

Spark loses what a source raises while it makes a stream reader, and shows an UnboundLocalError of its own.
What a reader's methods raise it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from haservice.pipeline.sources.options import EXPLAINED, one_sentence


def stream_reader(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """What `make` returns; if it refuses the options, a reader that raises that at its first use."""
    try:
        return make()
    except EXPLAINED as error:
        return RefusedStream(error)


@one_sentence
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises `error` from each method that Spark may call first."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def _refuse(self, *_: Any) -> NoReturn:
        raise self._error

    def initialOffset(self) -> NoReturn:
        self._refuse()

    def latestOffset(self, start: Any, limit: ReadLimit) -> NoReturn:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        self._refuse()

    def getDefaultReadLimit(self) -> NoReturn:
        self._refuse()

    def reportLatestOffset(self) -> NoReturn:
        self._refuse()

    def read(self, partition: Any) -> NoReturn:
        self._refuse()
