"""Printable: what others say, made fit for a line of a log or a terminal.  Pure.

    escaped(text)    no line ends, control characters, bidirectional marks: one line, and what it seems to be
    lines(text)      the same for a text that may have several lines, and tabs

The spelling is Java's: \\n \\r \\t, \\x1b, \\u202e, two of those for a character beyond the first 65,536.  So
what is escaped inside a JSON text is still that text.
"""

from __future__ import annotations

import unicodedata

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: str) -> str:
    """All that is not printable as an escape; any blank that has a width is printable."""
    return text if text.isprintable() else "".join(map(_shown, text))


def lines(text: str) -> str:
    """Line ends and tabs stay."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.split("\n"))


def _shown(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    if char in _SHORT:
        return _SHORT[char]
    if char < " ":
        return f"\\x{ord(char):02x}"
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
