"""Commands about DLedger groups, which elect their master."""
