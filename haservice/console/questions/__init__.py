"""What pages ask brokers and nameservers.  These functions block; pages call them with `visit.ask`."""
