"""Side by side with peers, on the same logical tables: `python -m benchmarks`."""
