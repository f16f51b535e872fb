"""commitlog: the bytes on disk, in the files of RocketMQ 4.9.  Knows no socket and no broker."""
