"""Shared by commands that people use, mqadmin and mqpipeline: flags, tables, advice, keys and TLS."""
