"""Chaos: the pair under every fault that can be provoked, and a checker that no promise was broken."""
