"""Access control for brokers and name servers: addresses, accounts, files, who sends a request."""
