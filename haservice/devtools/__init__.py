"""For those who build haservice: benchmarks, a pair in a scratch directory, the quickstart."""
