"""The broker's own native code, beside the log's kernel: plain sends, from the bytes of a read to their answers.

`sends` is the compiled module or None; where it is None, or stops, the Python path does the same.
"""

from __future__ import annotations

import os
from typing import Any

from commitlog.kernel import native as kernel

sends: Any
sends, _, _lacking = kernel.load(os.environ, "haservice.broker.send.native._sends")


def build() -> str:
    """The build in force, as `mqadmin brokerStatus` has it: the kernel's, and that of sends where it is another."""
    if kernel.core is None or sends is not None:
        return kernel.build
    return f"{kernel.build}, but sends in python ({_lacking})"


def lacking() -> str:
    """What native code is not there though nobody forced that; "" if nothing is."""
    return kernel.lacking or _lacking
