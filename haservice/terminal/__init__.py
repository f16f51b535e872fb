"""What commands share who speak with a person: flags, tables, advice, keys and TLS; for mqadmin and mqpipeline."""
