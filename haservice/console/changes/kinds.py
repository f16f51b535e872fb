"""What can be changed in a pair, by the functions of mqadmin's commands: the same text, the same refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.settings import pause_by
from haservice.admin.commands.ha.failover import fail_over
from haservice.admin.commands.ha.forget import forget_replica
from haservice.admin.commands.ha.reinit import begin_anew
from haservice.admin.commands.ha.switchover import switch_over
from haservice.console.changes.steps import WebSteps
from haservice.terminal.options import address


@dataclass(frozen=True, slots=True)
class ChangeAsked:
    """One change as a form asks for it.  `target` is an address, or of a replica to forget perhaps its id."""

    kind: str
    name: str
    target: str = ""
    options: frozenset[str] = frozenset()

    @property
    def needs_name(self) -> bool:
        """Whether something may be lost for good: then the broker name has to be typed."""
        return self.kind == "forget" or bool(self.options & {"force", "discard"})

    def query(self, **more: str) -> dict[str, str]:
        """The fields that ask for it."""
        return {"target": self.target, **dict.fromkeys(sorted(self.options), "1"), **more}


class ChangeOption(NamedTuple):
    """A box to tick; `after_refusal`: shown only once the change was refused without it."""

    name: str
    text: str
    after_refusal: bool = False


class ChangeKind(NamedTuple):
    title: str
    button: str
    run: Callable[[WebSteps, MQAdmin, Sequence[str], ChangeAsked], bool]
    options: tuple[ChangeOption, ...] = ()
    needs_target: bool = True


def _switchover(steps: WebSteps, admin: MQAdmin, namesrv: Sequence[str], asked: ChangeAsked) -> bool:
    return switch_over(steps, admin, namesrv, asked.name, asked.target or None)


def _failover(steps: WebSteps, admin: MQAdmin, namesrv: Sequence[str], asked: ChangeAsked) -> bool:
    force = "force" in asked.options
    return fail_over(steps, admin, namesrv, asked.name, asked.target, force=force)


def _reinit(steps: WebSteps, admin: MQAdmin, namesrv: Sequence[str], asked: ChangeAsked) -> bool:
    discard, unread = ("discard" in asked.options, "unread" in asked.options)
    return begin_anew(steps, admin, namesrv, asked.target, discard=discard, unread=unread)


def _forget(steps: WebSteps, admin: MQAdmin, namesrv: Sequence[str], asked: ChangeAsked) -> bool:
    return forget_replica(steps, admin, namesrv, asked.name, asked.target, force="force" in asked.options)


def _pause(steps: WebSteps, admin: MQAdmin, namesrv: Sequence[str], asked: ChangeAsked) -> bool:
    return pause_by(steps, admin, namesrv, asked.name, paused=True)


def _resume(steps: WebSteps, admin: MQAdmin, namesrv: Sequence[str], asked: ChangeAsked) -> bool:
    return pause_by(steps, admin, namesrv, asked.name, paused=False)


KINDS: Mapping[str, ChangeKind] = {
    "switchover": ChangeKind("Switchover", "Switch over", _switchover, needs_target=False),
    "failover": ChangeKind(
        "Failover",
        "Fail over",
        _failover,
        (ChangeOption("force", "Do it all the same: lose what is said above (--force)", after_refusal=True),),
    ),
    "reinit": ChangeKind(
        "Reinit",
        "Rebuild the slave",
        _reinit,
        (
            ChangeOption("discard", "Remove what the slave has; else it is kept under cut/ (--discard)"),
            ChangeOption("unread", "Do not read the master's log through before (--unread)"),
        ),
    ),
    "pause": ChangeKind("Pause of failover", "Pause failover", _pause, needs_target=False),
    "resume": ChangeKind("End of the pause", "Resume failover", _resume, needs_target=False),
    "forget": ChangeKind(
        "Forget",
        "Forget the replica",
        _forget,
        (ChangeOption("force", "Do it all the same: lose what only it has (--force)", after_refusal=True),),
    ),
}


def asked_by(kind: str, name: str, fields: Mapping[str, str]) -> ChangeAsked | None:
    """None for a kind that there is not, or without a target where one is needed.  Raises click.BadParameter."""
    found = KINDS.get(kind)
    target = fields.get("target", "").strip()
    if found is None or (found.needs_target and not target):
        return None
    if target and (kind != "forget" or ":" in target):
        target = address(target)
    options = frozenset(one.name for one in found.options if fields.get(one.name))
    return ChangeAsked(kind, name, target, options)
