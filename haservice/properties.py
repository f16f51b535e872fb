r"""Java's .properties text: what RocketMQ keeps its configuration in.

The rules are those of java.util.Properties.load:

    line         ends with \n, \r or \r\n; a backslash before the end joins it with the next,
                 whose leading blanks are dropped
    comment      a line whose first visible character is # or !; it cannot be continued
    key          up to the first unescaped =, : or blank
    value        the rest, without the blanks around the separator; blanks at the end stay
    escapes      \t \n \r \f \uXXXX; a backslash before anything else is dropped
    duplicates   the later one wins

Pure: no file is opened here, and no key means anything here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from haservice.errors import ConfigError

BLANKS = " \t\f"
SEPARATORS = "=:"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    """One key's value, and the line its key stands on, counted from 1."""

    value: str
    line: int


class Properties(Mapping[str, Entry]):
    """The entries of one text, in the order of their first appearance."""

    def __init__(self, entries: dict[str, Entry], source: str, warnings: tuple[str, ...] = ()) -> None:
        self._entries = entries
        self.source = source
        self.warnings = warnings

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def line_of(self, key: str) -> int:
        """The line of `key`, 0 when it is not in the text."""
        entry = self._entries.get(key)
        return entry.line if entry else 0


def parse(text: str, source: str) -> Properties:
    """Reads a whole text; `source` names it in messages.

    Raises ConfigError with the line for a malformed \\u escape, which Java refuses too.
    """
    entries: dict[str, Entry] = {}
    warnings: list[str] = []
    for line, logical in _logical_lines(text):
        raw_key, raw_value = _split(logical)
        key = _unescape(raw_key, source, line)
        value = _unescape(raw_value, source, line)
        if key in entries:
            warnings.append(f"{source}:{line}: {key}: overrides line {entries[key].line}")
        entries[key] = Entry(value, line)
    return Properties(entries, source, tuple(warnings))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each entry: comments left out, continuations joined."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    number = 0
    while number < len(lines):
        first = number
        logical = lines[number].lstrip(BLANKS)
        number += 1
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical):
            logical = logical[:-1]
            if number == len(lines):
                break
            logical += lines[number].lstrip(BLANKS)
            number += 1
        if logical:
            yield first + 1, logical


def _continues(line: str) -> bool:
    """An odd number of backslashes at the end: the last one is not itself escaped."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(logical: str) -> tuple[str, str]:
    """Key and value, both still escaped."""
    end = 0
    while end < len(logical) and logical[end] not in SEPARATORS and logical[end] not in BLANKS:
        end += 2 if logical[end] == "\\" else 1
    value = logical[end:].lstrip(BLANKS)
    if value and value[0] in SEPARATORS:
        value = value[1:].lstrip(BLANKS)
    return logical[:end], value


def _unescape(raw: str, source: str, line: int) -> str:
    if "\\" not in raw:
        return raw
    out: list[str] = []
    position = 0
    while position < len(raw):
        char = raw[position]
        position += 1
        if char != "\\":
            out.append(char)
            continue
        escaped = raw[position : position + 1]
        position += 1
        if escaped != "u":
            out.append(ESCAPES.get(escaped, escaped))
            continue
        digits = raw[position : position + 4]
        if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise ConfigError(source, line, "", f"\\u{digits}: \\u takes four hexadecimal digits")
        out.append(chr(int(digits, 16)))
        position += 4
    # Java's chars are UTF-16: a pair of \u escapes is one character beyond U+FFFF.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
