"""Generates the files of conf/, and the tables of docs/configuration.md, from the declared keys.

    python -m haservice.configuration.generate        from a clone; a test compares

In the page it writes only between `<!-- keys … -->` and `<!-- /keys -->`; people write the prose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
MARKED = re.compile(r"(<!-- keys (.+?) -->\n).*?(<!-- /keys -->)", re.S)


def generated() -> dict[str, str]:
    """Path below the clone → content, for every file.  Raises ValueError if a page lacks a table, or has
    one too many.
    """
    files = {f"conf/{example.file}": example.text() for example in EXAMPLES}
    page = (ROOT / PAGE).read_text()
    tables = _tables()
    if sorted(name for _, name, _ in MARKED.findall(page)) != sorted(tables):
        raise ValueError(
            f"{PAGE} has to have once each: {', '.join(f'<!-- keys {one} -->' for one in tables)}"
        )
    files[PAGE] = MARKED.sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", page)
    return files


def _tables() -> dict[str, str]:
    tables = {}
    for node, example in (("broker", MASTER), ("nameserver", NAMESERVER)):
        for section, keys in in_sections(example.sections, example.classes):
            if (node, section) != ("nameserver", TLS):  # the same keys as a broker's
                tables[f"{node}: {section.title}"] = _table(keys)
    return tables


def _table(keys: Sequence[tuple[Key, type[Any]]]) -> str:
    rows = ["| key | default | values | a change | meaning |", "| --- | --- | --- | --- | --- |"]
    for key, kind in keys:
        default = default_text(key)
        shown = default if key.default in SPOKEN else f"`{default}`" if default else "–"
        rows.append(f"| `{key.name}` | {shown} | {allowed(key, kind)} | {_change(key)} | {sentence(key)} |")
    return "\n".join(rows)


def _change(key: Key) -> str:
    if KeyTrait.BY_HAND in key.marks:
        return "by hand"
    if key.takers:
        return "at once"
    return "guarded" if KeyTrait.GUARDED in key.marks else "next start"


if __name__ == "__main__":
    for path, text in generated().items():
        (ROOT / path).write_text(text)
