"""WebSteps: what a command of roles shows and asks, for a page.

agreed is None     the plan: all is asked and shown up to the question, where Planned is raised
agreed is a text   the change: it goes on only if it is about the same facts as the plan that was agreed to
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from haservice.admin.commands.ha.role_steps import NOTHING, StepLog
from haservice.terminal.output import Table

# Lines that a change may say; further ones replace the last.
LINES_MAX = 500


class Planned(Exception):
    """The question is reached; `facts` names what it is about."""

    def __init__(self, facts: str) -> None:
        super().__init__(facts)
        self.facts = facts


class TitledTable(NamedTuple):
    title: str
    table: Table


@dataclass(slots=True)
class WebSteps(StepLog):
    """Filled in one thread; pages read it meanwhile in another."""

    output_format: str = "table"
    yes: bool = True
    agreed: str | None = None
    lines: list[str] = field(default_factory=list)
    tables: list[TitledTable] = field(default_factory=list)

    def table(self, key: str, title: str, table: Table) -> None:
        self.tables.append(TitledTable(title, table))

    def line(self, text: str) -> None:
        if len(self.lines) >= LINES_MAX:
            self.lines.pop()
        self.lines.append(text)

    @property
    def is_blind(self) -> bool:
        return False

    def go_on(self, facts: object = None) -> None:
        """Raises Planned, or click.ClickException if the facts have changed since the plan."""
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()
        if self.agreed is None:
            raise Planned(digest)
        if digest != self.agreed:
            raise click.ClickException(f"what was shown has changed since: {NOTHING}; look at it again")

    def changed(self) -> None:
        """Raises click.ClickException: the page shows the plan again."""
        raise click.ClickException(
            f"the brokers or their logs have just changed: {NOTHING}; look at it again"
        )

    def end(self, **facts: Any) -> None:
        self.said.update(facts)
