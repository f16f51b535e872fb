"""The HA wire: a master ships its log, a slave appends it and reports how far it is."""
