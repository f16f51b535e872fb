"""A member's log as its decisions see it: what it has to do, runs of its entries, and what is damaged in it."""
