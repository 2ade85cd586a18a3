"""Benchmarks: `make bench-<name>` runs `python -m benchmarks.<name>`. Each prints a table and, last, one line
of JSON, which it also keeps in benchmarks/results/<name>.json."""
