"""The slave's side: it follows a master, checks what comes, stores and reports it."""
