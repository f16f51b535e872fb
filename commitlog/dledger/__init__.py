"""DLedger's log: entries that carry a term and an index, in the files that a stock DLedger node has.

layout      the table of an entry's fields, of an index unit and of the blank
entries     one entry: encode, parse, check
scan        entries that follow each other, up to the first place without one
growing     files that grow at the end: written, rolled, synced, cut
small       currterm and checkpoint
recovery    what a start does to the tail and the index
store       EntryStore: append as leader or follower, read, cut, begin anew
reading     a log read from outside, the classic log before it included
"""
