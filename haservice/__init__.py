"""haservice: a message log kept as a replicated pair, on RocketMQ 4.9 wires and files."""

__version__ = "0.5.0"
