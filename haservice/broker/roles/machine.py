"""The machine of roles: a state and an event in, a state and actions out.  Pure.

    master   looks at its peers, and gives way to a newer epoch that one of them proves
             hears the replicas that may have what it lost, takes that back, and begins an epoch
             asks the slave that it may have handed over to what became of it
             on request begins a further epoch, follows another master, or hands over
    slave    on request becomes the master, pledges itself to another candidate, or begins anew
             asks the candidate that it has pledged to what became of it

One change is under way at a time, and it waits for one result.  So no append is let go while something is
taken back or an epoch begins, and no two commands work on one log.  Checking is peer_checks.py, the changes of a
master are in new_epoch.py and handover.py, those of a slave promotion.py.  Whoever runs the machine carries out the
actions in their order and gives it each result: executor.py in a broker, a simulation on virtual time.
"""

from __future__ import annotations

from haservice.broker.lease.orders import begin_epoch, seal
from haservice.broker.roles.actions import Ask, Refuse
from haservice.broker.roles.handover import hand_over
from haservice.broker.roles.new_epoch import Following, follow, forget, further_epoch, note_master, take_role
from haservice.broker.roles.peer_checks import Look, begin
from haservice.broker.roles.promotion import ask_after_pledge, empty, pledge, promote
from haservice.broker.roles.state import (
    AHEAD_MAX,
    SUSPECTS_MAX,
    Asked,
    Begin,
    BeginEpoch,
    Event,
    Hint,
    RoleState,
    SealLog,
    SlaveAhead,
    Step,
    TakeRole,
    Tick,
    View,
)
from haservice.remoting.headers.lineage import (
    FollowHeader,
    ForgetHeader,
    PledgeHeader,
    PromoteHeader,
    ReinitHeader,
    SwitchoverHeader,
)


def step(state: RoleState, event: Event, view: View) -> Step:
    """What follows from an event.  A result goes to the change that waits for it."""
    if isinstance(event, Begin):
        return begin(state, event, view)
    if isinstance(event, Hint):
        return _suspect(state, event.addr), ()
    if isinstance(event, SlaveAhead):
        return _note_ahead(state, event), ()
    if isinstance(event, Tick):
        return _look(state, view)
    if isinstance(event, Asked):
        return _asked(state, event, view)
    assert state.change is not None, event
    return state.change.advance(state, event, view)


def why_busy(state: RoleState) -> str:
    """Why any request has to be refused now; "" if requests can be handled."""
    if state.turning:
        return f"this broker is changing its role: {state.turning}"
    return "another change of its role is under way" if state.changing else ""


def _suspect(state: RoleState, addr: str) -> RoleState:
    if not addr or addr in state.suspects:
        return state
    return state.but(suspects=(*state.suspects, addr)[-SUSPECTS_MAX:])


def _note_ahead(state: RoleState, event: SlaveAhead) -> RoleState:
    if state.who.is_slave or (event.replica_id not in state.ahead and len(state.ahead) >= AHEAD_MAX):
        return state
    return state.but(ahead={**state.ahead, event.replica_id: event.addr})


def _look(state: RoleState, view: View) -> Step:
    if state.turning or state.change is not None:
        return state, ()
    if state.who.is_slave:
        return ask_after_pledge(state, view)
    if state.newer is not None:
        return Following(state.newer, f"stepped down: {state.trouble}").begin(state, view)
    handing = view.kept.handing_over
    also = {*state.suspects, *state.ahead.values(), *(one.broker_addr for one in state.waiting.values())}
    if handing is not None:
        also.add(handing.broker_addr)
    return state.but(change=Look(), suspects=(), again=False), (Ask(tuple(sorted(also - {""}))),)


def _asked(state: RoleState, asked: Asked, view: View) -> Step:
    if busy := why_busy(state):
        return state, (Refuse(asked.ticket, busy),)
    assert state.change is None, state.change  # looks end before we are given a request
    header, ticket = asked.header, asked.ticket
    is_slave = state.who.is_slave
    if isinstance(header, BeginEpoch):
        return begin_epoch(state, ticket, header, view)
    if isinstance(header, SealLog):
        return seal(state, ticket, header, view)
    if isinstance(header, TakeRole):
        return take_role(state, ticket, header, view)
    if isinstance(header, PromoteHeader):
        return (promote if is_slave else further_epoch)(state, ticket, header, view)
    if isinstance(header, FollowHeader):
        return (note_master if is_slave else follow)(state, ticket, header, view)
    if isinstance(header, ForgetHeader):
        return forget(state, ticket, header, view)
    if isinstance(header, PledgeHeader):
        return pledge(state, ticket, header, view)
    if isinstance(header, ReinitHeader):
        return empty(state, ticket, header, view)
    assert isinstance(header, SwitchoverHeader), header
    return hand_over(state, ticket, header, view)
