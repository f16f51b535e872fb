"""A broker's part in failover by a coordinator: what its rounds need of a broker, and do to it."""
