"""The broker's own native code, beside the log's kernel: plain sends, from the bytes of a read to their answers.

`sends` is the compiled module or None; where it is None, or stops, the Python path does the same.
"""

from __future__ import annotations

import os
from typing import Any

from commitlog.kernel.native import load

sends: Any = load(os.environ, "haservice.broker.native._sends")[0]
