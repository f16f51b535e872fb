"""The log: segments, their end where records are written, and reading."""
