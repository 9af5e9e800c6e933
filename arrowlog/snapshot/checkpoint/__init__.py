"""Checkpoints: Parquet parts with a manifest, JSON files and the `_last_checkpoint` pointer."""
