"""Tag expressions: which messages of a queue a subscription takes, judged by the index's tag code.

An expression is `*`, empty (everything), or tags joined by `||`.  The broker compares hashes only: a
collision passes, and the client compares the text (RocketMQ's ExpressionMessageFilter).  Pure.
"""

from __future__ import annotations

from functools import lru_cache

from commitlog.kernel.records import java_hash

TAG = "TAG"
SQL92 = "SQL92"

ALL = "*"
# A longer expression is refused: it is parsed on the loop, and kept while its pull is held.
EXPRESSION_CHARS_MAX = 8192
# Codes of longer ones are not kept for who asks next: a thousand of the longest would have 400 MB.
KEPT_CHARS_MAX = 256

# The codes that a filter lets through; None lets everything through.
TagCodes = frozenset[int] | None


class ExpressionFault(ValueError):
    """An expression that names no tag, or is too long to parse."""


def tag_codes(expression: str) -> TagCodes:
    """The hashes of the tags that `expression` names, None for all.  Raises ExpressionFault."""
    if len(expression) > KEPT_CHARS_MAX:
        return _tag_codes(expression)
    return _kept_tag_codes(expression)


def _tag_codes(expression: str) -> TagCodes:
    if expression in ("", ALL):
        return None
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise ExpressionFault(f"{len(expression)} characters, at most {EXPRESSION_CHARS_MAX} are read")
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise ExpressionFault(f"{expression!r} names no tag")
    return frozenset(map(java_hash, tags))


_kept_tag_codes = lru_cache(maxsize=1024)(_tag_codes)


def lets_through(codes: TagCodes, tags_code: int) -> bool:
    """Whether a message whose index entry holds `tags_code` passes.

    Java compares the lower 32 bits, which matters for codes that are not hashes (delayed messages).
    """
    return codes is None or ((tags_code + 0x80000000) & 0xFFFFFFFF) - 0x80000000 in codes
