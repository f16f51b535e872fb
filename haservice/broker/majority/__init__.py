"""A broker whose log a majority agrees on (enableDLegerCommitLog).

                    the process                                      one BrokerNode after the other, each in one role
    ┌──────────────────────────────────────────┐             ┌──────────────────────────────────────────────────────┐
    │ BrokerMember ─ DLedgerNode ─ EntryStore   │  attach     │ MajorityStore ─ MajorityLog ─ dispatch, queues, pulls │
    │   place(bodies) ◀────────────────────────┼─────────────┼── sends, delays, transactions                         │
    │   committed, role, term ─────────────────┼────────────▶│ MajorityProof: sends wait for it                      │
    └──────────────────────────────────────────┘             │ MajorityKeeper: turns the broker when the role does   │
                                                             └──────────────────────────────────────────────────────┘

The member outlives the nodes: an election stops the broker's parts and starts them in the other role, as a change of a
pair's roles does, and the log goes on meanwhile.

    member.py    the process's member of its group; a classic log changes over here
    proof.py     sends that wait for a majority
    classic.py   damage of the classic files below the entries
    ha.py        what replication tells of itself in this mode
    keeper.py    which role a broker has, and when it has to turn
    startup.py   the role in which a node starts
"""
