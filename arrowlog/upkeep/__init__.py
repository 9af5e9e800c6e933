"""What keeps a table well: checkpoints, clean-up, compaction, vacuum, skips.

Promises: nothing that a promised version needs is deleted; a dry run says exactly what a real run
does; upkeep that fails never fails the commit that caused it; compaction changes no row.
May import `commit`, `scan`, `state`, `log`, `config`, `errors`.
"""
