"""Remoting: the wire that RocketMQ clients, nameservers and tools speak."""
