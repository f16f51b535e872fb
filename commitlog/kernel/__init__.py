"""The one place that knows a record's layout and rules.

    layout      the table of fields; structs, numpy's description and the C header come from it
    records     one message: encode, stamp, decode, check      the readable reference, in Python
    scan        many records: up to the first that is none
    entries     what a queue's entries lead to: the records that they are said to be of
    loops       many records at once, as columns of numbers: how the pipeline reads a log
    keys        what the index and tags want of properties
    dispatching runs of records into queue entries and index puts
    native      the same over whole runs, in C, where it was built (core/*.h, _native.pyx)

The native build never decides what is wrong.  It goes over what is whole and ordinary and stops before anything
else, which the reference then judges, in its own words.  So both builds give the same results and the same
errors, and everything here works without it.
"""
