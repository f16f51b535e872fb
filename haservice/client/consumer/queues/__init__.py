"""The queues that a consumer holds: which, from where on, and what of them is not consumed yet."""
