"""Consumer groups: their members and their progress."""
