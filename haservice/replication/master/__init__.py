"""The master's side: it takes slaves in, ships its log, and counts their acks."""
