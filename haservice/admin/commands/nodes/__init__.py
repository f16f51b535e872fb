"""Brokers and nameservers: how they are, their configuration, accounts and exports."""
