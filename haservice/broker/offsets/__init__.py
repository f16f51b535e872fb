"""Consumer offsets at scale: the table in shards, what changed in it, its journal, and its copies for slaves."""
