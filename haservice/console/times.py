"""Times as people type them into a form: those that mqadmin takes, and what ISO and its own tables show.  Pure."""

from __future__ import annotations

import re

import click

from haservice.terminal.options import timestamp_ms

# 2026-11-25T13:46, or as a page shows it: 2026-11-25 13:46:55,123
_BETWEEN = re.compile(r"^(\d{4}-\d\d-\d\d)[T ]+(?=\d)")


def given_ms(text: str) -> int | None:
    """Milliseconds since 1970; None for a blank text.  Raises click.BadParameter."""
    text = text.strip()
    if not text:
        return None
    when = timestamp_ms(_BETWEEN.sub(r"\1#", text).replace(",", ":").replace(".", ":"))
    if when >= 1 << 62:
        raise click.BadParameter(f"{text!r} is no time of this era")
    return when
