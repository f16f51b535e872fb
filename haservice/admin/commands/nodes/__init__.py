"""Brokers and nameservers: their state, configuration, accounts and exports."""
