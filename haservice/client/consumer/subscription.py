"""What a consumer wants of a topic: an expression over tags, or SQL92 over properties.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from commitlog.kernel.layout import NAME_LETTERS
from commitlog.kernel.records import java_hash
from commitlog.log.log import wall_clock_ms
from haservice.remoting.bodies.clients import SubscriptionData

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"

# Our brokers refuse longer ones.
EXPRESSION_CHARS_MAX = 8192

# What no property of a message can hold.
_IN_NO_PROPERTY = re.compile("[\x01\x02\ud800-\udfff]")
_LOOKS_LIKE_MORE = re.compile(r"[\s|,]")

# A topic's name.  Not records.is_topic: the retry topic of a long group name is longer than a record's topic.
_NAME = re.compile(NAME_LETTERS + "+")


@dataclass(frozen=True, slots=True)
class Subscription:
    """`TagA || TagB`, `*`, or with `sql` an expression such as `price > 10 AND TAGS = 'new'`."""

    topic: str
    expression: str = ALL
    sql: bool = False
    version: int = field(default_factory=wall_clock_ms)

    def __post_init__(self) -> None:
        """Raises ValueError for a subscription that no broker would take."""
        if not _NAME.fullmatch(self.topic):
            raise ValueError(
                f"topic {self.topic!r}: a name has one or more of the characters a-z A-Z 0-9 _ - % |"
            )
        text = self.expression.strip()
        if len(text) > EXPRESSION_CHARS_MAX:
            raise ValueError(
                f"subscription to {self.topic}: {len(text)} characters, at most {EXPRESSION_CHARS_MAX}"
            )
        if self.sql and not text:
            raise ValueError(f"subscription to {self.topic}: an SQL92 expression is missing")
        if not self.sql and text not in ("", ALL) and not self.tags:
            raise ValueError(f"subscription to {self.topic}: {self.expression!r} names no tag")
        for tag in self.tags:
            if _IN_NO_PROPERTY.search(tag):
                raise ValueError(
                    f"subscription to {self.topic}: no message can have the tag {tag!r}: "
                    "\\x01 and \\x02 end a property, and half a surrogate pair is no text"
                )

    @property
    def tags(self) -> frozenset[str]:
        """The tags; empty: messages with any tag, or none."""
        text = self.expression.strip()
        if self.sql or text in ("", ALL):
            return frozenset()
        return frozenset(tag for part in text.split("||") if (tag := part.strip()))

    @property
    def doubtful_tags(self) -> list[str]:
        """Tags that are legal, but look like another expression: `A B`, `A | B`, `A, B`, `* || A`, `price > 10`."""
        return sorted(tag for tag in self.tags if tag == ALL or _LOOKS_LIKE_MORE.search(tag))

    @property
    def kind(self) -> str:
        return SQL92 if self.sql else TAG

    def data(self) -> SubscriptionData:
        """The subscription as heartbeats have it."""
        tags = sorted(self.tags)
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression if self.sql or tags else ALL,
            expression_type=self.kind,
            sub_version=self.version,
            tags_set=tags,
            code_set=[java_hash(tag) for tag in tags],
        )


def retry_topic(group: str) -> str:
    """The topic in which messages come back that a member could not consume."""
    return f"%RETRY%{group}"


def dead_letter_topic(group: str) -> str:
    """The topic for messages that came back too often."""
    return f"%DLQ%{group}"
