"""Roles: who is the master of a broker name, and how that changes."""
