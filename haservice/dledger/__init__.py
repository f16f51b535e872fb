"""A commit log that a majority agrees on, with an elected leader: DLedger.  It decides; only node/ does I/O.

            events                    step(event, now)                      actions, in this order
    a request, an answer, ─▶ ┌───────────────────────────────┐ ─▶ save term, vote, record (before what follows)
    an append, a sync,       │            Member             │    ask a peer, answer a request
    time                     │  election    ballot           │    say where appended entries are
                             │  leadership  dispatcher × n   │    say what is committed, who leads
                             │  follower    appends          │
                             └───────────────┬───────────────┘
                                             │ append, read, cut: an EntryLog, which belongs to the caller

    codes.py       numbers of requests and answers                          as stock DLedger has them
    messages.py    what members and clients say to each other, as JSON      as stock DLedger has it
    wire.py        messages in RocketMQ's frames
    settings.py    who is in the group, intervals, bounds
    events.py      what a member is told, and what it wants done
    log/           what a member needs of its log, runs of entries, mending
    state.py       role, term, vote, leader; questions that wait for an answer
    ballot.py      one round of votes, and its seven outcomes
    election.py    when to ask for votes, whom to vote for, whom to follow
    wholeness.py   whether this member may vote and acknowledge, and how it comes to that
    leadership.py  heartbeats, the lease, what a majority has
    dispatcher.py  what a leader sends one follower
    follower.py    what a follower does with it
    appends.py     appends that wait for a majority
    transfer.py    a leader hands over to another member
    member.py      all of it together: step(event, now)
    node/          a member as it runs: its files, its port, its clock

A member's way between its roles:

                      no word from the leader                 a majority would vote for it,
                  ┌──────────────────────────────▶ CANDIDATE  and none of them has a leader:  next term, votes
               FOLLOWER                              │  ▲  ▲ ─────────────────────────────────────┐
                  ▲        a leader of this term,    │  │  │   no majority within the lease,      ▼
                  └──────────── or of a newer one ───┘  │  └──── a newer term, a failed disk ── LEADER
                                                        └── hands over: next term at once

docs/dledger.md has the argument of safety, and what differs from stock DLedger.
"""
