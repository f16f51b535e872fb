"""Reads and writes the ext fields of pulls without a plan, for speed: every pull has them.

clients.py says what they mean, and what is wrong with one that cannot be read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from haservice.remoting.headers.clients import PullMessageHeader

_CHECK_RANGES = struct.Struct(">iiiqqqq").pack  # one call says whether all of them fit


def read_pull(ext: Mapping[str, str]) -> PullMessageHeader:
    """As PullMessageHeader.decode(), in a third of the time."""
    get = ext.get
    try:
        queue_id, count, sys_flag = int(ext["queueId"]), int(ext["maxMsgNums"]), int(ext["sysFlag"])
        offset, commit = int(ext["queueOffset"]), int(get("commitOffset", 0))
        suspend, version = int(get("suspendTimeoutMillis", 0)), int(get("subVersion", 0))
        _CHECK_RANGES(queue_id, count, sys_flag, offset, commit, suspend, version)
        return PullMessageHeader(
            ext["consumerGroup"],
            ext["topic"],
            queue_id,
            offset,
            count,
            sys_flag,
            commit,
            suspend,
            version,
            get("subscription"),
            get("expressionType"),
        )
    except (KeyError, ValueError, struct.error):
        return PullMessageHeader.decode(ext)  # which says what field it is


def pull_answer(broker_id: int, next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    """As PullMessageResponseHeader.encode(), without the object."""
    return {
        "suggestWhichBrokerId": str(broker_id),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
    }
