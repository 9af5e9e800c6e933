"""What you may ask of a log: its whole past as tables in DuckDB, its history, what changed.

Promises: what a view says of a version is what replay says of it; history that is gone is not made
up, the views begin with the earliest version that can be read; nothing is decoded or typed that
no question needs; a past larger than memory goes to a temporary file.
May import `commit`, `scan`, `state`, `log`, `config`, `errors`.
"""
