"""Access control, as brokers and name servers share it: addresses, accounts, files, who sends a request."""
