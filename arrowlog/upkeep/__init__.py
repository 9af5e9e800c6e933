"""Maintenance and recovery of tables.

Maintenance: checkpoints, cleanup, compaction, vacuum, merge skips, statistics. Recovery: doctor,
salvage, repair.

Promises: no file that a readable version needs is deleted; a dry run reports exactly what the real
run does; maintenance that fails never fails the commit that triggered it; compaction changes no
row. May import `commit`, `scan`, `state`, `log`, `config`, `errors`.
"""
