"""scripts/bench_scale: how the cost of one thing grows with its number, row by row.

A row is a `Row` in the tuple ROWS of a module of `rows/`; the runner finds it there.  Its function gets a `Stage`
and the sizes to measure, and yields a `Point` for each size as soon as it has it:

    def held_pulls(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
        with stage.pair() as pair, Sender(pair.master_addr) as sender:
            pair.start_nameserver()
            pair.start_master()
            for size in sizes:
                with Watch(pair.processes["broker-a"].pid, sender=sender) as watch:
                    ...  # the work, `size` times
                yield watch.point(size, memory_mb=...)

    ROWS = (Row("held-pulls", "n pulls are held ...", held_pulls),)

The runner prints one table for each row.  Its last line is the law of growth of each column, fitted over all points.
"""
