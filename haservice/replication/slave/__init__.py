"""The slave's side: it follows a master, checks the master's bytes, stores them and reports them."""
