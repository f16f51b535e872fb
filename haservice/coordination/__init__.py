"""Who may be master of a broker name, decided with the help of etcd or ZooKeeper.  It knows no broker and no log.

    voters.py       which acks make an OK, who has to be heard, when the voters may change      pure
    cluster.py      what the coordinator holds of one broker name, as values and as JSON        pure
    facts.py        what one broker knows when it decides                                       pure
    decision.py     facts in, actions out: the rules                                            pure
    candidate.py    why a broker may not take the lease, or that it may                         pure
    rounds.py       one round: renew, read, decide, act; as a generator that does no I/O        pure
    gate.py         whether a message is taken, and an OK answered, at this moment
    coordinator.py  what is asked of a coordinator: read, commit, sessions, a watch
    etcd.py, zookeeper.py   the two that there are; connect.py makes one, addresses.py says which

docs/failover.md has the argument of safety.
"""
