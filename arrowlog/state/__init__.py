"""What is true: the live files of a table at a version, as columns.

Replay is pure; `load` is the only module that asks a store. A snapshot never changes.
May import: `log`, `config`, `errors`.
"""
