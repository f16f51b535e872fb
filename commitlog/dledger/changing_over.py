"""A classic log changes over to DLedger, as in a stock broker: its files stay, and entries begin behind them.

    commitlog/ … │ last file, the rest declared blank │      dledger-<id>/data/ begins at the next file's offset

Members of a group have to begin at the same place.  So either all have the same classic log (a pair whose slave is
level, and a copy for the third), or one has it, and the others are empty.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from commitlog.disk.files import Files, OSFiles
from commitlog.log.segments import Segments
from commitlog.options import LogOptions
from commitlog.store import Store

logger = logging.getLogger(__name__)


def change_over(
    options: LogOptions, data: Sequence[Path], *, store_host: bytes, files: Files | None = None
) -> int:
    """Where the entries of a new log begin; closes the classic log there, if there is one.

    `data` are the directories of entries.  May be called again, also after a crash amid it.  Raises CommitLogError.
    """
    files = files if files is not None else OSFiles()
    if not files.exists(options.log_path) or not files.listdir(options.log_path):
        return 0
    if any(files.exists(one) and files.listdir(one) for one in data):
        segments = Segments(files, options.log_path, options.segment_bytes)
        segments.load()
        end = segments.items[-1].end
        segments.close()
        return end
    store = Store.open(options, store_host=store_host, files=files)
    try:
        records_end, end = store.log.end, store.log.end_file()
        logger.warning(
            "classic log ends, entries of DLedger follow path=%s records_end=%d entries_begin=%d",
            options.log_path,
            records_end,
            end,
        )
    finally:
        store.close()
    return end
