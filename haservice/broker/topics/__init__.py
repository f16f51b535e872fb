"""Topics: their table, its file and journal, how they are made and changed, and what nameservers are told of them."""
