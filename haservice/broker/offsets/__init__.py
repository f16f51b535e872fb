"""Consumer offsets: the table in shards, what changed in it, its files (stored, journal), what slaves ask
(copies answers, fetch asks, merge decides).
"""
