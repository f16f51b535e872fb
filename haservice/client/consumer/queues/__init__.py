"""The queues that a consumer holds: which, from where on, what of them is not consumed yet."""
