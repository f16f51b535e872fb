"""For developers of haservice: benchmarks, a pair in a scratch directory, the quickstart."""
