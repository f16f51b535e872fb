"""What a broker keeps beside its log, and tells nameservers, slaves and tools."""
