"""`mqadmin reinit`: rebuilds a slave from its master."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.finding import desk_of
from haservice.admin.commands.coordinator.voters import check_voters
from haservice.admin.commands.dledger.group import check_no_group
from haservice.admin.commands.ha.ask_brokers import ask, fetcher, gather
from haservice.admin.commands.ha.role_steps import (
    LOOK_AGAIN_S,
    TELL_S,
    StepLog,
    check_told,
    say_once,
    timeout_option,
    yes_option,
)
from haservice.admin.commands.ha.topology import Member, Topology
from haservice.broker.roles.peer_repair import COMPARED_BYTES, Fetch, NoRecord, whole_records
from haservice.deadline import Deadline
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import ReinitHeader
from haservice.replication.lineage.epochs import common_point
from haservice.terminal.options import command, format_option, namesrv_option, one_broker_option
from haservice.terminal.output import human_bytes, human_seconds, on_terminal, shown_addr

# Seconds to watch.
TIMEOUT_S = 60.0
# By then a slave that was told to begin anew has begun, even if nobody saw it empty.
BEGUN_S = 2.0
KEPT = "  what it had is in cut/reinit-TIME/ of its store until somebody removes it\n"
LET_BOTH_RUN = (
    "  let both run: the master takes them from its slaves within a minute or two; then begin again"
)
NOT_RUNNING = "start it: a slave is rebuilt while it runs"


@command("reinit")
@namesrv_option
@one_broker_option("--brokerAddr", required=True, help="The slave, host:port.")
@click.option("--discard", is_flag=True, help="Remove what it has; else it is kept under cut/.")
@click.option(
    "--lose",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="With --yes: gives up so many bytes that its master lacks.",
)
@click.option("--unread", is_flag=True, help="Do not read the master's log through before.")
@timeout_option(TIMEOUT_S, "Seconds to watch; the slave goes on after that.")
@yes_option
@format_option
def reinit(
    namesrv: tuple[str, ...],
    broker: str,
    discard: bool,
    lose: int | None,
    unread: bool,
    timeout_s: float,
    yes: bool,
    output_format: str,
) -> None:
    """Rebuilds a slave from its master.

    For a slave whose log cannot be reconciled with its master's, or is damaged.  It empties its store and
    copies everything, from the first byte that the master has.  What it had is moved to cut/reinit-TIME/ in
    its store, which needs disk space, or is removed with --discard.

    \b
      mqadmin reinit -b 10.0.0.2:10911
      mqadmin reinit -b 10.0.0.2:10911 --discard --yes -f json

    It is refused while the master does not answer, or refuses writes: what the slave has may then be all
    there is.  For the same reason the command reads the master's whole log first; --unread skips that.  If the
    slave has bytes that its master lacks, --yes wants --lose with their exact number, as the command shows it.

    Of brokers with haCoordinator the master has to hold the lease, and another voter to be level with it if an
    OK takes acks of slaves: what the slave has acknowledged counts until it has copied it again.
    """
    report = StepLog(output_format, yes)
    with report, MQAdmin(namesrv) as admin:
        done = begin_anew(
            report, admin, namesrv, broker, discard=discard, lose=lose, unread=unread, timeout_s=timeout_s
        )
    if not done:
        sys.exit(1)


def begin_anew(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    broker: str,
    *,
    discard: bool = False,
    lose: int | None = None,
    unread: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> bool:
    """Shows, asks, tells, watches; returns whether the slave has caught up.  Raises click.ClickException,
    RemotingError.
    """
    before = gather(admin, broker, namesrv, hint=NOT_RUNNING)
    check_no_group(
        before,
        "the leader fills a member that is empty; stop this broker, remove the directory dledger-ID of its store, and"
        " start it again",
    )
    report.show("before", before)
    slave, master = reinit_pair(before, broker)
    refuse_damaged(master, slave)
    if (desk := desk_of(admin, before)) is not None:
        with desk:
            report.line(check_voters(desk, slave, master))
    assert master.log is not None
    assert slave.log is not None
    gives, takes = (human_bytes(one.end - one.start) for one in (slave.log, master.log))
    fate = "removed" if discard else "kept under cut/"
    report.line(
        f"{shown_addr(slave.addr)} discards the {gives} that it has ({fate}), "
        f"and copies {takes} from {shown_addr(master.addr)}."
    )
    own = own_bytes(slave, master, fetcher(admin))
    if own:
        report.line(f"Of that its master has not {own} bytes ({human_bytes(own)}).")
    if master.is_ours:  # nobody can compare a stock master's log
        check_lost(report, slave, own, lose)
    report.go_on((slave.addr, master.addr, own, discard))
    if master.is_ours and not unread:  # a stock master lets nobody read its log
        read_through(admin, master, slave)
    started = time.monotonic()
    with report.telling(admin, before.name, slave):
        admin.call(slave.addr, RequestCode.REINIT, ReinitHeader(not discard).encode(), timeout_s=TELL_S)
    caught_up = wait_for_refill(admin, slave, master.log.end, timeout_s)
    took_s = time.monotonic() - started
    late = "" if caught_up else why_not(admin, slave)
    after = gather(admin, master.addr, namesrv, (slave.addr,))
    report.show("after", after)
    report.line(
        f"{shown_addr(slave.addr)} has everything that its master has: {human_seconds(took_s)}"
        if caught_up
        else f"{shown_addr(slave.addr)} has not caught up after {timeout_s:g} s, and goes on{late}\n"
        f"{'' if discard else KEPT}"
        f"  mqadmin haStatus -b {shown_addr(slave.addr)} -w 2 watches it"
    )
    now = after.member(slave.addr)
    report.end(
        brokerName=before.name,
        brokerAddr=slave.addr,
        masterAddr=master.addr,
        kept=not discard,
        logEnd=None if now is None else now.end,
        complete=caught_up,
    )
    return caught_up


def reinit_pair(topology: Topology, addr: str) -> tuple[Member, Member]:
    """The slave and its master.  Raises click.ClickException."""
    slave = topology.member(addr)
    assert slave is not None
    where = shown_addr(addr)
    if not slave.is_ours:
        raise click.ClickException(
            f"{where} is a stock broker, which does not know this command\n"
            "  stop it, empty its store, and start it"
        )
    if slave.is_master:
        raise click.ClickException(
            f"{where} is the master of {topology.name}: reinit builds slaves\n"
            f"  mqadmin switchover -b {topology.name} makes it one, if another can take over"
        )
    masters = [one for one in topology.masters if one.is_at(slave.master_addr)] or list(topology.masters)
    if not masters:
        check_told(topology)
        of_it = shown_addr(slave.master_addr) if slave.master_addr else "which it does not know"
        raise click.ClickException(
            f"the master of {where}, {of_it}, does not answer: what {where} has may be all there is\n"
            f"  mqadmin failover -b {topology.name} --to {where} makes it the master"
        )
    master = masters[0]
    if master.held:
        raise click.ClickException(
            f"the master of {where}, {shown_addr(master.addr)}, refuses writes: {master.held}\n"
            f"  {where} may have what the master lacks: see to that first; mqadmin haStatus says more"
        )
    return slave, master


def refuse_damaged(master: Member, slave: Member) -> None:
    """Raises click.ClickException if the slave may have the only copy of what its master cannot give."""
    if master.damaged:
        raise click.ClickException(
            f"the log of the master, {shown_addr(master.addr)}, is damaged from {master.damaged}: a new slave"
            f" stops there, and {shown_addr(slave.addr)} may be the only one that has these bytes\n"
            f"{LET_BOTH_RUN}"
        )


def read_through(admin: MQAdmin, master: Member, slave: Member) -> None:
    """Checks every record of the master's log: it may be the only copy once the slave has given up its own.

    Raises click.ClickException for a damaged one; the master is made to look at it, so that it gets the
    bytes back from its slave.  Raises RemotingError.
    """
    assert master.log is not None
    begin, end = master.log.start, master.log.end
    label = f"reading the log of {shown_addr(master.addr)}" if on_terminal() else ""
    with click.progressbar(
        length=end - begin, label=label, file=sys.stderr if label else io.StringIO()
    ) as bar:
        try:
            for run in whole_records(
                fetcher(admin), master.addr, begin, end, master.segment_bytes, torn_end=True
            ):
                bar.update(len(run.data))
        except NoRecord as error:
            with suppress(RemotingError):
                admin.view(master.addr, error.offset)
            raise click.ClickException(
                f"the log of the master, {shown_addr(master.addr)}, is damaged at {error.offset}:"
                f" {error.reason}; a new slave stops there, and {shown_addr(slave.addr)} may be the only one"
                f" that has these bytes: nothing was changed\n{LET_BOTH_RUN}"
            ) from None


def why_not(admin: MQAdmin, slave: Member) -> str:
    """What the slave says of its link to the master, to end a sentence."""
    with suppress(RemotingError):
        status = admin.ha_status(slave.addr)
        if status is not None and status.ha_client_runtime_info is not None:
            error = status.ha_client_runtime_info.last_error
            return f": {error}" if error else ""
    return ""


def own_bytes(slave: Member, master: Member, fetch: Fetch) -> int:
    """How many bytes the slave has that are not in its master's log: by their epochs, and by the last bytes below the
    place where they part.  If those differ, nobody knows what is alike, and all counts.
    """
    if slave.log is None or master.log is None:
        return 0
    common = common_point(slave.lineage, slave.log.end, master.lineage, master.log.end)
    if common is None or not _alike_below(common.point, slave, master, fetch):
        return slave.log.end - slave.log.start
    return slave.log.end - common.point


def _alike_below(point: int, slave: Member, master: Member, fetch: Fetch) -> bool:
    assert slave.log is not None
    assert master.log is not None
    begin = max(slave.log.start, master.log.start, point - COMPARED_BYTES)
    while begin < point:
        try:
            pieces = [fetch(one.addr, begin, point - begin) for one in (slave, master)]
        except AnswerError:  # damaged, or deleted meanwhile: the epochs say what is known
            return True
        size = min(map(len, pieces))
        if not size or pieces[0][:size] != pieces[1][:size]:
            return False
        begin += size
    return True


def check_lost(report: StepLog, slave: Member, own: int, lose: int | None) -> None:
    """Whoever says yes before he saw the number has to name it.  Raises click.ClickException."""
    if report.is_blind and own and lose is None:
        raise click.ClickException(
            f"refused: with --yes, {own} bytes that its master lacks are given up only by --lose {own}\n"
            f"  if they were acknowledged, {shown_addr(slave.addr)} has the only copy: mqadmin haStatus shows both logs"
        )
    if own and lose is not None and lose != own:
        raise click.ClickException(f"refused: its master lacks {own} bytes, and --lose says {lose}")


def wait_for_refill(admin: MQAdmin, slave: Member, target: int, timeout_s: float) -> bool:
    """Whether the slave's log reaches `target` in time; shows its progress."""
    assert slave.log is not None
    deadline, began = Deadline(timeout_s), time.monotonic()
    begun, told = False, ""
    while True:
        now = ask(admin, slave.addr)
        if now.log is None or now.changing or now.log.end < slave.log.end or now.log.start > slave.log.start:
            begun = True
        sure = begun or time.monotonic() - began > BEGUN_S
        # While it changes it may still tell the end of the log that it is about to give up.
        if sure and not now.changing and now.end is not None and now.end >= target:
            return True
        if deadline.expired:
            return False
        if now.end is None:
            told = say_once(f"  … {now.state}", told)
        elif begun:
            told = say_once(f"  … {human_bytes(now.end)} of {human_bytes(target)}", told)
        time.sleep(LOOK_AGAIN_S)
