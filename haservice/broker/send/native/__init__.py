"""The broker's own native code, besides the log's kernel: plain sends, from bytes read to their answers.

`sends` is the compiled module or None; without it, or where it stops, the Python path does the same.
"""

from __future__ import annotations

import os
from typing import Any

from commitlog.kernel import native as kernel

sends: Any
sends, _, _lacking = kernel.load(os.environ, "haservice.broker.send.native._sends")


def build() -> str:
    """The build in use, as `mqadmin brokerStatus` shows it: the kernel's, and that of sends if it differs."""
    if kernel.core is None or sends is not None:
        return kernel.build
    return f"{kernel.build}, but sends in python ({_lacking})"


def lacking() -> str:
    """Which native code is missing although nobody switched it off; "" if none is."""
    return kernel.lacking or _lacking
