"""Pages as HTML: the templates, and how they show values.

Values come from outside.  The templates escape them for HTML; `finalize` escapes what is not printable, as tools do
on a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from haservice import __version__, printable
from haservice.terminal.output import (
    Table,
    counted,
    human_bytes,
    human_rate,
    human_seconds,
    local_second,
    local_time,
    perm_text,
    plain,
    shown_addr,
    version_text,
)

UNKNOWN = "unknown"


def _finalize(value: Any) -> Any:
    if value is None:
        return "-"
    if isinstance(value, Markup):
        return value
    return printable.lines(str(value)) if isinstance(value, str) else value


def _cells(table: Table) -> list[list[tuple[str, bool]]]:
    """The rows of a table of mqadmin as texts, without what is for programs only; whether each stands right."""
    return [
        [
            (column.shown(value), column.right)
            for column, value in zip(table.columns, row, strict=True)
            if not column.json_only
        ]
        for row in table.rows
    ]


ENVIRONMENT = Environment(
    loader=PackageLoader("haservice.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_finalize,
)
ENVIRONMENT.filters.update(
    bytes=human_bytes,
    rate=human_rate,
    seconds=human_seconds,
    second=local_second,
    time=local_time,
    addr=shown_addr,
    perm=perm_text,
    plain=plain,
    version=version_text,
    cells=_cells,
    counted=counted,
    known=lambda value: UNKNOWN if value is None or value == "" else value,
)
ENVIRONMENT.globals.update(version=__version__, zone=lambda: time.strftime("%Z, UTC%z"))


def render(template: str, facts: Mapping[str, Any]) -> str:
    return ENVIRONMENT.get_template(template).render(facts)
