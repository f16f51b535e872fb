"""The decisions of a DLedger member, one part at a time."""
