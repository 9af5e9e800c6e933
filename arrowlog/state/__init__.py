"""Snapshots: the live files of a table at one version, as Arrow columns.

Listing, log replay, refresh, checkpoints, caches and time travel. Replay itself is pure; a snapshot
is immutable. May import: `log`, `config`, `errors`.
"""
