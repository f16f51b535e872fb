"""What a broker keeps besides its log, and tells name servers, slaves and tools."""
