"""`python -m haservice.devtools.scale`, which scripts/bench_scale runs."""

from haservice.devtools.scale.cli import main

if __name__ == "__main__":
    main(prog_name="scripts/bench_scale")
