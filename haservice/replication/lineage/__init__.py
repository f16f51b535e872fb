"""Which master wrote which part of the log, and which replicas may hold an OK."""
