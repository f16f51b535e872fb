"""What a broker keeps besides its log, and tells nameservers, slaves and tools."""
