"""The name server: who is alive, and which broker has which topic."""
