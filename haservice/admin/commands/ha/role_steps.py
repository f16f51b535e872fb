"""Shared by the commands that change roles: what they show, how they ask, what they wait for."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.ha.ask_brokers import ask, gather, table_at
from haservice.admin.commands.ha.topology import Member, Topology
from haservice.admin.commands.ha.topology_text import start_text, table_of
from haservice.deadline import Deadline
from haservice.errors import AnswerError, HAServiceError, ProtocolError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID, ClusterInfo
from haservice.terminal.explain import explain
from haservice.terminal.output import Table, and_text, echo, shown_addr, to_json

LOOK_AGAIN_S = 0.1
# A broker that is told flushes, writes its lineage, and then answers.
TELL_S = 30.0
# A new master tells the slaves at its first look, or at its second; a slave that does not follow by then is
# shown as it is.
FOLLOW_S = 7.0
# A broker that changes its role does not answer for a moment; after this time the trouble is shown.
TURN_S = 3.0
# The shell's exit code of a process that ^C ended.
INTERRUPTED = 130
NOTHING = "nothing was changed"
# Added to the time that a switchover may take: for its answer to arrive.
ANSWER_S = 5.0
ROUTES = "Clients find it when they ask for the route again: RocketMQ's within 30 s."

name_option = click.option(
    "-b",
    "--brokerName",
    "where",
    metavar="NAME",
    required=True,
    help="The brokers' name, or the address of one of them.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def timeout_option(default: float, help: str) -> Callable[[Any], Any]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1),
        metavar="N",
        default=default,
        show_default=True,
        help=help,
    )


@dataclass(slots=True)
class StepLog:
    """What one command shows: lines as it goes, or one object at the end, also after a refusal."""

    output_format: str
    yes: bool
    said: dict[str, Any] = field(default_factory=dict)
    told: str = NOTHING
    """What an interrupted command leaves behind."""

    def __post_init__(self) -> None:
        if self.output_format == "json" and not self.yes:
            raise click.UsageError("-f json is for programs, which cannot be asked: say --yes, too")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Puts a refusal into the object, too; after an interrupt says what came of it."""
        if isinstance(error, KeyboardInterrupt) or isinstance(error and error.__context__, KeyboardInterrupt):
            echo(f"\nInterrupted: {self.told}", err=True)
            self.end(error=f"interrupted: {self.told}")
            sys.exit(INTERRUPTED)
        if isinstance(error, click.Abort) and isinstance(error.__context__, EOFError):
            raise click.ClickException(
                f"there is no terminal to answer: {NOTHING}\n  --yes does not ask"
            ) from None
        if isinstance(error, click.ClickException):
            self.end(error=error.format_message())
        elif isinstance(error, HAServiceError):
            self.end(error=explain(error))

    @property
    def is_blind(self) -> bool:
        """Whether nobody sees the plan before it is carried out."""
        return self.yes

    def show(self, key: str, topology: Topology) -> None:
        """Shows the brokers `before` or `after`."""
        self.table(key, f"{topology.name} {key}", table_of(topology))

    def table(self, key: str, title: str, table: Table) -> None:
        self.said[key] = table.objects()
        if self.output_format != "json":
            echo(f"{title}:\n{table.text()}\n")

    def line(self, text: str) -> None:
        echo(text, err=self.output_format == "json")

    def go_on(self, facts: object = None) -> None:
        """Asks the person, unless told not to.  Raises click.ClickException for a no.

        `facts` are what the answer is about, for who asks in another way than here.
        """
        del facts
        if not self.yes and not click.confirm("Go on?", default=False):
            raise click.ClickException(NOTHING)

    def changed(self) -> None:
        """Says that the facts asked about have changed.  Raises click.ClickException if nobody was asked."""
        if self.yes:
            raise click.ClickException(f"the brokers or their logs have just changed; {NOTHING}")
        self.line("\nMeanwhile that has changed:\n")

    @contextlib.contextmanager
    def telling(self, admin: MQAdmin, name: str, one: Member, help: Sequence[str] = ()) -> Iterator[None]:
        """Wraps the call that tells `one` what to do.  Raises click.ClickException with what came of it, and
        with `help` if `one` refuses.
        """
        shows = f"{_commands(name, group=one.is_in_group)} what came of it"
        self.told = f"{shown_addr(one.addr)} was told, and goes on with it\n  {shows}"
        try:
            yield
        except (RemotingError, ProtocolError) as error:
            now, addr = ask(admin, one.addr), shown_addr(one.addr)
            refused = isinstance(error, AnswerError) and (now.role, now.state) == (one.role, one.state)
            fate = f"{NOTHING}, {addr} goes on as before" if refused else f"{addr}: {now.state}\n  {shows}"
            lines = [explain(error), fate, *(help if isinstance(error, AnswerError) else ())]
            raise click.ClickException("\n  ".join(lines)) from error

    def end(self, **facts: Any) -> None:
        self.said |= facts
        if self.output_format == "json":
            echo(to_json(self.said))


def say_waited_for(topology: Topology) -> None:
    """Says on standard error, before a change, for which silent brokers its steps wait in vain."""
    if silent := [one.where for one in topology.silent if one.is_waited_for]:
        them, does = ("it", "does") if len(silent) == 1 else ("them", "do")
        echo(
            f"  … {and_text(silent)} {does} not answer: the brokers wait 1 to 2 s for {them} at each step",
            err=True,
        )


def wait_for_master(
    admin: MQAdmin,
    name: str,
    addr: str,
    epoch: int,
    namesrv: Sequence[str],
    timeout_s: float,
) -> bool:
    """Whether in time the broker at `addr` answers as the master and is in the route of each nameserver.

    Says what it waits for, whenever that changes.
    """
    deadline, turning, told = Deadline(timeout_s), Deadline(min(TURN_S, timeout_s)), ""
    while True:
        waits = _waits_for(admin, name, addr, epoch, namesrv, turns=not turning.expired)
        if not waits:
            return True
        told = say_once(f"  … {waits}", told)
        if deadline.expired:
            return False
        time.sleep(LOOK_AGAIN_S)


def _waits_for(
    admin: MQAdmin, name: str, addr: str, epoch: int, namesrv: Sequence[str], *, turns: bool
) -> str:
    """What is still missing; "" if nothing is.  While the broker `turns`, no answer is no trouble."""
    now = ask(admin, addr)
    if now.changing or (turns and not now.answers and not now.lives):
        return f"{shown_addr(addr)} changes its role"
    if not now.answers:
        return f"{shown_addr(addr)}: {now.trouble}"
    number = now.group_epoch if now.is_in_group or now.last_epoch is None else now.last_epoch.number
    if not now.is_master or (now.is_ours and number < epoch):
        return f"{shown_addr(addr)} is {now.role} in epoch {'-' if number < 0 else number}"
    if now.held:
        return f"{shown_addr(addr)} refuses writes: {now.held}"
    for place in namesrv:
        table = table_at(admin, place)
        if not isinstance(table, ClusterInfo):
            continue  # an unreachable nameserver keeps nobody from being the master
        listed = table.broker_addr_table.get(name)
        master = None if listed is None else listed.broker_addrs.get(MASTER_ID)
        if master is None or not now.is_at(master):
            named = "no master" if master is None else shown_addr(master)
            return f"nameserver {shown_addr(place)} names {named}"
    return ""


def wait_for_followers(admin: MQAdmin, before: Topology, addr: str, epoch: int, report: StepLog) -> bool:
    """Waits until the others that answered before follow the master at `addr` in its epoch, FOLLOW_S at most.

    Says who does, and who does not by then; returns whether none of these is a master.
    """
    deadline, master = Deadline(FOLLOW_S), before.member(addr) or Member(addr)
    waiting, seen = {one.addr for one in before.ours if not one.is_at(addr)}, dict[str, Member]()
    while waiting:
        seen |= {one: ask(admin, one) for one in waiting}
        waiting = {one for one in waiting if not (_follows(seen[one], master) and _is_in(seen[one], epoch))}
        if deadline.expired:
            break
        if waiting:
            time.sleep(LOOK_AGAIN_S)
    others = sorted(seen.values(), key=lambda one: one.addr)
    following = [one for one in others if _follows(one, master)]
    if following:
        named = and_text([one.where for one in following])
        report.line(f"{named} {'follows' if len(following) == 1 else 'follow'} {shown_addr(addr)}.")
    for one in others:
        if one not in following:
            report.line(f"Not following yet: {one.where}: {one.state}")
        elif not _is_in(one, epoch):
            report.line(
                f"Not in epoch {epoch} yet: {one.where} has epoch {'-' if one.epoch is None else one.epoch},"
                f" and its log ends at {one.end}"
            )
    return not any(one.is_master for one in others if one not in following)


def _is_in(one: Member, epoch: int) -> bool:
    """Whether it has taken that epoch, or a later one: until then its line in the table shows the old one."""
    return one.epoch is not None and one.epoch >= epoch


def _follows(one: Member, master: Member) -> bool:
    return one.answers and not one.changing and not one.is_master and master.is_at(one.master_addr)


def say_once(text: str, told: str) -> str:
    """Writes `text` to standard error if it differs from `told`, the last one."""
    if text != told:
        echo(text, err=True)
    return text


def not_yet(addr: str, name: str, timeout_s: float, *, group: bool = False) -> str:
    return (
        f"{shown_addr(addr)} was told, and is not in place after {timeout_s:g} s: the last line says what is "
        f"missing\n  {_commands(name, group=group)} how it goes on"
    )


def _commands(name: str, *, group: bool) -> str:
    """Those that show how a pair or a DLedger group goes on; a group has no history."""
    return "mqadmin haStatus shows" if group else f"mqadmin history -b {name} and mqadmin haStatus show"


def refuse(text: str, members: Sequence[Member]) -> NoReturn:
    """Raises click.ClickException: `text`, then what each of `members` said, and what helps."""
    said = [f"{one.where}: {one.state}" for one in members]
    advice = dict.fromkeys(one for one in (*(one.advice for one in members), start_text(members)) if one)
    raise click.ClickException("\n  ".join([text, *said, *advice]))


def check_told(topology: Topology) -> None:
    """Raises click.ClickException for brokers that are alive and do not say what they are."""
    untold = [one for one in topology.members if one.lives]
    if untold:
        refuse(f"a broker of {topology.name} does not say what it is, and may be the master", untold)


def check_at_rest(topology: Topology) -> None:
    """Raises click.ClickException for brokers that another command is changing."""
    changing = [one for one in topology.ours if one.changing]
    if changing:
        refuse(
            f"a change of roles is under way in {topology.name}: wait until it is done; "
            f"{_commands(topology.name, group=bool(topology.group))} what came of it",
            changing,
        )


def show_after(
    admin: MQAdmin, before: Topology, namesrv: Sequence[str], report: StepLog, also: Sequence[str] = ()
) -> None:
    """Shows all brokers that were there before, whatever the nameservers list now."""
    addrs = [*also, *(one.addr for one in before.members)]
    report.show("after", gather(admin, before.name, namesrv, addrs))
