"""Consume queues: per topic and queue id, where each message lies in the log."""
