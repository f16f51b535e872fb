"""Consume queues and index: read, checked, built."""
