"""Access control for brokers and nameservers: addresses, accounts, files, who sends a request."""
