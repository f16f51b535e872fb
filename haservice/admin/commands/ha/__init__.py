"""The pair: how it stands, who is the master, and how to change it."""
