"""Spark's sources and sink: store directories, and topics of running brokers."""
