"""The rows of scripts/bench_scale: each module has a tuple ROWS."""
