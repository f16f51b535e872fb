"""The one place that knows a record's layout and rules.

    layout      the table of fields; structs, numpy's description and the C header come from it
    records     one message: encode, stamp, decode, check      the readable reference, in Python
    scan        many records: up to the first place without a record
    piecewise   one record whose bytes come in pieces, as a slave gets them
    entries     records, checked against the queue entries that lead to them
    loops       many records at once, as columns of numbers: how the pipeline reads a log
    keys        tags and keys in properties, and their hashes
    dispatching runs of records into queue entries and index puts
    native      the same over whole runs, in C, if it was built (core/*.h, _native.pyx)

The native build never decides what is wrong.  It goes over whole, ordinary records and stops before anything
else.  The reference judges that, in its own words.  So both builds give the same results and the same errors,
and everything here works without the native one.
"""
