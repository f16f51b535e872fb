"""Python functions over Arrow columns, for what Spark's own expressions cannot do.

A function's annotations tell Spark what it takes and gives: arrays, or iterators of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

# pyspark ships no annotation for it.
_arrow_udf: Any = vars(F)["arrow_udf"]


def by_arrow(work: Callable[..., Any], returns: str, *columns: Column | str) -> Column:
    """Applies `work`, which turns one array per column into one array of as many values."""
    made: Column = _arrow_udf(work, returns)(*columns)
    return made


def by_task(work: Callable[..., Any], returns: str, column: Column) -> Column:
    """Applies `work` over all batches of a task in order, for its side effects, where the column stands."""
    made: Column = _arrow_udf(work, returns).asNondeterministic()(column)
    return made
