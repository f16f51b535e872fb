"""Whether a command said what a page shows, apart from what is another each time.  Pure.

`…` stands for anything.  A date, a duration, a size, an id of 8 hex digits and a number of three digits and more stand
for any other of their kind, but addresses and smaller numbers for themselves.  So do spaces, however many.
"""

from __future__ import annotations

import re

_ANY = re.compile(
    r"(?P<anything>\s*…\s*)"
    r"|(?P<address>\d+\.\d+\.\d+\.\d+(?::\d+)?)"
    r"|(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    r"|(?P<size>[\d.,]+ (?:B|KiB|MiB|GiB)\b)"
    r"|(?P<duration>(?:\d+ (?:d|h|min) )*\d+(?:\.\d+)? s\b)"
    r"|(?P<id>\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b)"
    r"|(?P<number>\b\d{3,}\b)"
    r"|(?P<space>\s+)"
)
_LIKE = {
    "anything": r"[\s\S]*?",
    "date": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    "size": r"[\d.,]+ (?:B|KiB|MiB|GiB)",
    "duration": r"(?:\d+ (?:d|h|min) )*\d+(?:\.\d+)? s",
    "id": r"[0-9a-f]{8}",
    "number": r"\d+",
    "space": r"\s+",
}


def says(shown: str, said: str) -> bool:
    """Whether `said` is what the page shows."""
    return re.fullmatch(_pattern(_settled(shown)), _settled(said)) is not None


def _settled(text: str) -> str:
    """Without lines of progress, which come as they come; an answer is echoed by a terminal only.  A broker that
    was the master may be about to follow when a table is printed.
    """
    answered = re.sub(r"\[y/N\]: (y\n)?", "[y/N]: y\n", text + "\n")
    answered = re.sub(r"(?:follows \S+|changes its role)$", "follows", answered, flags=re.M)
    return re.sub(r"^  … \S.*\n", "", answered, flags=re.M).strip()


def _pattern(shown: str) -> str:
    pattern, at = "", 0
    for found in _ANY.finditer(shown):
        pattern += re.escape(shown[at : found.start()])
        pattern += _LIKE.get(found.lastgroup or "", re.escape(found[0]))
        at = found.end()
    return pattern + re.escape(shown[at:])
