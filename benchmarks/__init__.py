"""Benchmarks of arrowlog next to its peers, on the same logical tables: `python -m benchmarks`."""
