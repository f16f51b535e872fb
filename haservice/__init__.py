"""haservice: a message log kept as a replicated pair, on RocketMQ 4.9 wires and files."""
