r"""Java's .properties text: what RocketMQ keeps its configuration in.

The rules are those of java.util.Properties.load:

    line         ends with \n, \r or \r\n; a backslash before the end joins it with the next,
                 whose leading blanks are dropped
    comment      a line whose first visible character is # or !; it cannot be continued
    key          up to the first unescaped =, : or blank
    value        the rest, without the blanks around the separator; blanks at the end stay
    escapes      \t \n \r \f \uXXXX; a backslash before anything else is dropped
    duplicates   the later one wins

`rewritten` changes the values of some keys and leaves all else as it is, comments and order included.

Pure: this module opens no file and knows no key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from haservice.errors import ConfigError

BLANKS = " \t\f"
SEPARATORS = "=:"
_ENDINGS = re.compile("(\r\n|\r|\n)")
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {char: f"\\{letter}" for letter, char in ESCAPES.items()} | {"\\": "\\\\"}


class PropertyEntry(NamedTuple):
    """One key's value, and the line of the key, counted from 1."""

    value: str
    line: int


class Properties(Mapping[str, PropertyEntry]):
    """The entries of one text, in the order of their first appearance."""

    def __init__(
        self, entries: dict[str, PropertyEntry], source: str, warnings: tuple[str, ...] = ()
    ) -> None:
        self._entries = entries
        self.source = source
        self.warnings = warnings

    def __getitem__(self, key: str) -> PropertyEntry:
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
    entries: dict[str, PropertyEntry] = {}
    warnings: list[str] = []
    for line, _, logical in _logical_lines(_lines(text)):
        raw_key, raw_value = _split(logical)
        key = _unescape(raw_key, source, line)
        value = _unescape(raw_value, source, line)
        if key in entries:
            warnings.append(f"{source}:{line}: {key}: overrides line {entries[key].line}")
        entries[key] = PropertyEntry(value, line)
    return Properties(entries, source, tuple(warnings))


def rewritten(text: str, changes: Mapping[str, str]) -> str:
    """The text with these values: at a key's last place, or in new lines at the end.

    The keys are plain names.  Raises ConfigError for a text that `parse` refuses.
    """
    pieces = _ENDINGS.split(text)
    lines, endings = pieces[0::2], [*pieces[1::2], ""]
    places: dict[str, tuple[int, int]] = {}
    for line, behind, logical in _logical_lines(lines):
        key = _unescape(_split(logical)[0], "", line)
        if key in changes:
            places[key] = (line - 1, behind)
    for key, (first, behind) in sorted(places.items(), key=lambda item: item[1], reverse=True):
        lines[first:behind] = [f"{key}={_escape(changes[key])}"]
        endings[first:behind] = [endings[behind - 1]]
    out = "".join(line + ending for line, ending in zip(lines, endings, strict=True))
    added = [f"{key}={_escape(value)}" for key, value in changes.items() if key not in places]
    if not added:
        return out
    ending = next((one for one in reversed(endings) if one), "\n")
    last = (_lines(out.rstrip("\r\n")) or [""])[-1]
    between = ending if out and not out.endswith(("\n", "\r")) else ""
    if _continues(last):  # it would go on in what is added
        between += ending
    return out + between + "".join(line + ending for line in added)


def _lines(text: str) -> list[str]:
    return _ENDINGS.split(text)[0::2]


def _logical_lines(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(first line, last line, text) of each entry: lines count from 1, comments are left out, continuations
    are joined.
    """
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
            yield first + 1, number, logical


def _continues(line: str) -> bool:
    """Whether an odd number of backslashes ends the line: then the last one is not itself escaped."""
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


def _escape(value: str) -> str:
    """As Java stores a value: ASCII only, blanks at its beginning kept."""
    out = []
    for char in value:
        if char in _ESCAPED:
            out.append(_ESCAPED[char])
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{units[at] << 8 | units[at + 1]:04X}" for at in range(0, len(units), 2)]
    text = "".join(out)
    return f"\\{text}" if text.startswith(" ") else text
