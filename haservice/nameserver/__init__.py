"""The nameserver: who is alive, and which broker has which topic."""
