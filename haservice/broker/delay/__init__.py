"""Delayed messages: where they wait, and how they come to their topics."""
