"""Python functions over Arrow columns, for what Spark's own expressions cannot do.

What a function takes and gives is told to Spark by its annotations: arrays, or iterators of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

# Not in the annotations that pyspark ships.
_arrow_udf: Any = vars(F)["arrow_udf"]


def by_arrow(work: Callable[..., Any], returns: str, *columns: Column | str) -> Column:
    """`work`: from one array per column to one of as many values."""
    made: Column = _arrow_udf(work, returns)(*columns)
    return made


def by_task(work: Callable[..., Any], returns: str, column: Column) -> Column:
    """`work`: over all batches of a task in their order, for what it does besides; done where it stands."""
    made: Column = _arrow_udf(work, returns).asNondeterministic()(column)
    return made
