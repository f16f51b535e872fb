"""From bytes of the log to rows."""
