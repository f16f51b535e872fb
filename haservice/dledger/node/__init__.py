"""A member of a DLedger group as it runs: its files, its port, its clock.

    peers, clients ─▶ RemotingServer ─▶ ┌─────────────┐ steps  ┌──────────────┐ append, read, cut
    peers          ◀─ RemotingClient ◀─ │  NodeShell  │ ─────▶ │ DLedgerMember│ ─────▶ StoredLog ─▶ EntryStore
    a broker above ◀───────────────────▶└─────────────┘ ◀───── └──────────────┘                        ▲
                                         │  actions      what is durable          EntryFlusher ─ flush │
                                         └─▶ TermFile                                        └─────────┘

stored_log.py    EntryLog over commitlog's EntryStore
flusher.py       the task of the thread dledger-flush: makes entries durable, writes the checkpoint
shell.py         events in, steps, actions out
peer_calls.py    calls and answers, on the node's loop or the broker's
node.py          DLedgerNode: owns all of it, from start() to stop()
"""
