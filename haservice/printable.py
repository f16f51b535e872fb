"""Printable: escapes text from outside for one line of a log or a terminal.  Pure.

    escaped(text)    without line ends, control characters, bidirectional marks: one line, as it really is
    lines(text)      the same for a text that may have several lines, and tabs

Escapes are spelt as in Java: \\n \\r \\t, \\x1b, \\u202e; two \\u for a character beyond the first 65,536.
An escaped JSON text therefore still means the same.
"""

from __future__ import annotations

import unicodedata

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: str) -> str:
    """`text` with an escape for each character that is not printable; a blank with a width is printable."""
    return text if text.isprintable() else "".join(map(_shown, text))


def lines(text: str) -> str:
    """As `escaped`, but line ends and tabs stay."""
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
