"""Generates the files of conf/, and the lists of docs/configuration.md, from the declared keys.

    python -m haservice.configuration.generate        from a clone; a test compares

In the page it writes only between `<!-- keys … -->` and `<!-- /keys -->`; people write the prose.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from commitlog.keys import Key, KeyTrait
from haservice.configuration.examples import (
    EXAMPLES,
    MASTER,
    NAMESERVER,
    SPOKEN,
    allowed,
    default_text,
    in_sections,
    sentence,
)
from haservice.configuration.security_settings import TLS

ROOT = Path(__file__).parents[2]
PAGE = "docs/configuration.md"
WIDTH = 120
MARKED = re.compile(r"(<!-- keys (.+?) -->\n).*?(<!-- /keys -->)", re.S)


def generated() -> dict[str, str]:
    """Path below the clone → content, for every file.  Raises ValueError if the page lacks a list, or has
    one too many.
    """
    files = {f"conf/{example.file}": example.text() for example in EXAMPLES}
    page = (ROOT / PAGE).read_text()
    lists = _lists()
    if sorted(name for _, name, _ in MARKED.findall(page)) != sorted(lists):
        raise ValueError(
            f"{PAGE} has to have once each: {', '.join(f'<!-- keys {one} -->' for one in lists)}"
        )
    files[PAGE] = MARKED.sub(lambda found: f"{found[1]}{lists[found[2]]}\n{found[3]}", page)
    return files


def _lists() -> dict[str, str]:
    lists = {}
    for node, example in (("broker", MASTER), ("nameserver", NAMESERVER)):
        for section, keys in in_sections(example.sections, example.classes):
            if (node, section) != ("nameserver", TLS):  # the same keys as a broker's
                lists[f"{node}: {section.title}"] = "\n".join(_item(key, kind) for key, kind in keys)
    return lists


def _item(key: Key, kind: type[Any]) -> str:
    """Key, default, values, what a change does; then its meaning."""
    default = default_text(key)
    shown = default if key.default in SPOKEN else f"`{default}`" if default else "not set"
    head = (
        f"* **`{key.name}`**: "
        + "; ".join(filter(None, (shown, allowed(key, kind), f"*{_change(key)}*")))
        + "."
    )
    lines = (head, sentence(key))
    wrapped = (
        textwrap.wrap(line, WIDTH, subsequent_indent="  ", initial_indent=indent, break_on_hyphens=False)
        for line, indent in zip(lines, ("", "  "), strict=True)
    )
    return "\n".join(line for part in wrapped for line in part)


def _change(key: Key) -> str:
    if KeyTrait.BY_HAND in key.marks:
        return "by hand"
    if key.takers:
        return "at once"
    return "guarded" if KeyTrait.GUARDED in key.marks else "next start"


if __name__ == "__main__":
    for path, text in generated().items():
        (ROOT / path).write_text(text)
