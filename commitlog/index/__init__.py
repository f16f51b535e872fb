"""The message index: by key, where messages lie in the log."""
