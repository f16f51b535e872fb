"""Consumer groups: their members, and how far they have come."""
