"""The pair: its state, who is the master, and how to change that."""
