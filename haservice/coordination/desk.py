"""What operators do with a coordinator: look, pause, change settings, ask for a master, forget a voter.

Nothing here is bound to a session.  A change is made to what was read: if somebody else was faster it is read and
decided again, TRIES times at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from haservice.coordination.addresses import CoordinatorPlace, Keys, root_of
from haservice.coordination.candidate import why_not, why_not_anew, why_restored
from haservice.coordination.cluster import (
    EPOCH,
    MASTER,
    MEMBERS,
    REQUEST,
    SETTINGS,
    VOTERS,
    Cluster,
    HistoryEntry,
    MasterRequest,
    MemberState,
    Settings,
    decode,
    decode_history,
)
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Coordinator, CoordinatorError, Transaction, outside
from haservice.coordination.facts import LeaseFacts, Own, OwnSession
from haservice.errors import HAServiceError
from haservice.typed_json import encode

TRIES = 10
Found = TypeVar("Found")


class DeskRefusal(HAServiceError):
    """What is asked for cannot be done; the text says why, and what helps."""


class OperatorDesk:
    """One broker name in a coordinator.  Used by one thread; `with` opens and closes it."""

    def __init__(
        self,
        place: CoordinatorPlace,
        cluster: str,
        name: str,
        keys: Keys,
        coordinator: Coordinator | None = None,
    ) -> None:
        """Raises CoordinatorMissing if its library is not installed."""
        self.place = place
        self.cluster = cluster
        self.name = name
        self._coordinator = (
            coordinator if coordinator is not None else coordinator_at(place, cluster, name, keys)
        )

    def __enter__(self) -> Self:
        """Raises DeskRefusal if it does not answer, or knows no such broker name."""
        try:
            with outside("the names are read"):
                self._coordinator.connect()
                names = self._coordinator.names()
        except CoordinatorError as error:
            self._coordinator.close()
            raise DeskRefusal(
                f"{error}\n  is it {self.place}?  haCoordinator of the brokers, or --coordinator, says where it is;"
                " haCoordinatorUser and the TLS files of --coordinatorConfig let you in"
            ) from None
        if f"{self.cluster}/{self.name}" not in names:
            self._coordinator.close()
            known = ", ".join(names) or "no broker at all"
            raise DeskRefusal(
                f"{self.place} knows no broker {self.name} of cluster {self.cluster}; it knows {known}\n"
                "  a broker is there once it has run with haCoordinator; -b and -c say which one is meant"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._coordinator.close()

    # -- looking ------------------------------------------------------------------------------------

    def see(self) -> Cluster:
        """Raises CoordinatorError, or DeskRefusal for keys that are not ours."""
        try:
            with outside("the keys are read"):
                found = self._coordinator.read()
            return decode(found)
        except ValueError as error:
            raise DeskRefusal(
                f"{self.place}, {self.cluster}/{self.name}: {error}\n"
                f"  It lies below {root_of(self.place, self.cluster, self.name)}/. If a person wrote it: delete that"
                " key, then mqadmin check says what is left to do.\n"
                "  If two programs share these keys: give one of them another path, or another cluster name."
            ) from None

    def history(self) -> list[HistoryEntry]:
        try:
            with outside("the history is read"):
                found = self._coordinator.history()
            return decode_history(found)
        except ValueError as error:
            raise DeskRefusal(f"{self.place}, {self.cluster}/{self.name}: {error}") from None

    def lease_left_s(self) -> float | None:
        with outside("the lease is read"):
            return self._coordinator.lease_left_s()

    # -- changing -----------------------------------------------------------------------------------

    def change_settings(self, change: Callable[[Settings], Settings]) -> Settings:
        """What they are now.  `change` may raise DeskRefusal."""

        def step(seen: Cluster) -> tuple[Transaction | None, Settings]:
            after = change(seen.settings)
            if after == seen.settings and SETTINGS in seen.versions:
                return None, after
            return Transaction(seen.expecting(SETTINGS), {SETTINGS: encode(after)}), after

        return self._commit(step)

    def ask(self, request: MasterRequest, epoch: int) -> None:
        """Raises DeskRefusal if something else is asked for already, or `epoch` is over.

        To begin anew with a coordinator that nobody believes is asked for again: who asked first may be gone.
        """

        def step(seen: Cluster) -> tuple[Transaction | None, None]:
            other = seen.request
            if other == request:
                return None, None  # ours: the answer to it did not come
            if other is not None and not (other.among and request.among):
                raise DeskRefusal(
                    f"a {other.kind} to replica {other.to[:8]} is asked for already ({other.why or 'nobody says why'}):"
                    f" nothing was changed; mqadmin haList -b {self.name} shows when it is over"
                )
            if seen.epoch != epoch:
                raise DeskRefusal(
                    f"epoch {seen.epoch} has begun meanwhile: nothing was changed; mqadmin haList -b {self.name} shows"
                    " who is the master"
                )
            return Transaction(seen.expecting(EPOCH, REQUEST), {REQUEST: encode(request)}), None

        self._commit(step)

    def withdraw(self, request: MasterRequest) -> bool:
        """Whether it was still there; then nobody does it any more."""

        def step(seen: Cluster) -> tuple[Transaction | None, bool]:
            if seen.request != request:
                return None, False
            return Transaction(seen.expecting(REQUEST), deletes=frozenset({REQUEST})), True

        return self._commit(step)

    def forget(self, replica_id: str) -> None:
        """Takes it out of the voters.  Raises DeskRefusal where `why_not_forgotten` has something to say."""

        def step(seen: Cluster) -> tuple[Transaction | None, None]:
            if why := why_not_forgotten(seen, replica_id):
                raise DeskRefusal(why)
            voters = replace(seen.voters, ids=seen.voters.ids - {replica_id})
            expects = seen.expecting(MASTER, EPOCH, VOTERS, f"{MEMBERS}{replica_id}")
            return Transaction(expects, {VOTERS: encode(voters)}), None

        self._commit(step)

    def _commit(self, step: Callable[[Cluster], tuple[Transaction | None, Found]]) -> Found:
        for _ in range(TRIES):
            transaction, found = step(self.see())
            if transaction is None:
                return found
            with outside("keys are written"):
                if self._coordinator.commit(transaction):
                    return found
        raise DeskRefusal(f"others change these keys all the time: nothing was changed in {TRIES} tries")


# -- what follows from what was read -----------------------------------------------------------------


def why_not_forgotten(seen: Cluster, replica_id: str) -> str:
    """Why it stays among the voters; "" if it can be taken out."""
    short = replica_id[:8]
    if replica_id not in seen.voters.ids:
        return f"replica {short} is no voter: nobody waits for it"
    if replica_id in seen.members:
        return f"replica {short} is connected to the coordinator: stop it first"
    if restored := why_refused(seen):
        return f"nobody believes these voters: {restored}"
    status = seen.status
    if seen.master is None and status is not None and status.goes_on and status.replica_id == replica_id:
        return f"replica {short} may go on without a lease, since failover was paused: it may answer OK now"
    if seen.master is not None:
        return (
            f"replica {seen.master.replica_id[:8]} is the master: it takes a silent voter out by itself once the"
            " others have every acknowledged message, unless no OK would be possible without it"
        )
    if len(seen.voters.ids) == 1:
        return f"replica {short} is the only voter: nobody else can have what was acknowledged"
    return ""


def why_no_master(seen: Cluster, one: MemberState, request: MasterRequest | None = None) -> str:
    """Why this member would not become the master if the master were gone, as far as the keys tell; "" if it may.

    While there is a master, all others are taken to seal their logs in time.  With `request`: if that were asked for.
    """
    members = dict(seen.members)
    if seen.master is not None:
        members.pop(seen.master.replica_id, None)
        sealed = {
            name: replace(other, sealed=max(other.sealed, seen.epoch)) for name, other in members.items()
        }
        members = sealed
        one = sealed.get(one.replica_id, one)
    due = request or seen.at(0).request  # one for later has no say before it is handed over
    then = replace(seen, master=None, members=members, request=due)
    return of_facts(then, one, why_restored) or of_facts(then, one, why_not)


def why_refused(seen: Cluster) -> str:
    """Why nobody believes this coordinator: it was restored from a backup, or emptied; "" if all do."""
    return next((why for one in seen.members.values() if (why := of_facts(seen, one, why_restored))), "")


def why_not_begun(seen: Cluster, one: MemberState, request: MasterRequest) -> str:
    """Why this member has not begun anew, as `request` asks it to; "" if it may do so now."""
    return of_facts(replace(seen, master=None, request=request), one, why_not_anew)


def of_facts(seen: Cluster, one: MemberState, ask: Callable[[LeaseFacts], str]) -> str:
    own = Own(one, may_be_first=True, needed=seen.voters.needed)
    return ask(LeaseFacts(0.0, own, seen, True, OwnSession("", 0.0, seen.settings.ttl_s)))
