"""Remoting: the wire that RocketMQ clients, name servers and tools speak."""
