"""Sending: from a client's message to the log, and what OK means."""
