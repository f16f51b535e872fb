"""The broker's own native code, besides the log's kernel: plain sends, from bytes read to their answers.

`sends` is the compiled module or None; without it, or where it stops, the Python path does the same.
"""

from __future__ import annotations

import os
from typing import Any

from commitlog.kernel import native as kernel

sends: Any
sends, _, _lacking = kernel.load(os.environ, "haservice.broker.send.native._sends")
# Loaded by its name, for it belongs to pulls.
_sql_lacking = kernel.load(os.environ, "haservice.broker.pull.native._sql")[2]


def build() -> str:
    """The build in use, as `mqadmin brokerStatus` shows it: the kernel's, and those of other parts that differ."""
    parts = (("sends", _lacking), ("SQL92 expressions", _sql_lacking))
    slow = [f"{part} in python ({lacking})" for part, lacking in parts if lacking]
    return kernel.build if kernel.core is None or not slow else f"{kernel.build}, but {', '.join(slow)}"


def lacking() -> str:
    """Which native code is missing although nobody switched it off; "" if none is."""
    return kernel.lacking or _lacking or _sql_lacking
