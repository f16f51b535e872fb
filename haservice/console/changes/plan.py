"""A plan: what a change would do and lose, or why it is refused.  Blocks; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from haservice.admin.calls import MQAdmin
from haservice.console.changes.kinds import KINDS, ChangeAsked, ChangeOption
from haservice.console.changes.steps import Planned, TitledTable, WebSteps
from haservice.terminal.output import heard_by

# What a command says while it waits begins so.
WAITING = "  …"
REFUSED = "refused: "


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """`facts` name what is agreed to; "" if it is refused, and then `refusal` says why."""

    asked: ChangeAsked
    lines: Sequence[str]
    tables: Sequence[TitledTable]
    facts: str = ""
    refusal: str = ""

    @property
    def options(self) -> list[ChangeOption]:
        """The boxes to tick beside it."""
        may_insist = self.refusal.startswith(REFUSED)
        return [
            one
            for one in KINDS[self.asked.kind].options
            if not one.after_refusal or may_insist or one.name in self.asked.options
        ]


def plan_of(admin: MQAdmin, namesrv: Sequence[str], asked: ChangeAsked) -> ChangePlan:
    """Raises RemotingError if nobody can be asked."""
    steps = WebSteps()
    facts = refusal = ""
    try:
        with heard_by(steps.line), steps:
            KINDS[asked.kind].run(steps, admin, namesrv, asked)
    except Planned as planned:
        facts = planned.facts
    except click.ClickException as error:
        refusal = error.format_message()
    lines = [line for text in steps.lines if not text.startswith(WAITING) for line in text.splitlines()]
    return ChangePlan(asked, lines, steps.tables, facts, refusal)
