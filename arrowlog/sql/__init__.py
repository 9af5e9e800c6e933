"""The history of a table: commits as DuckDB views, `history`, `diff` and `overview`.

Promises:

- What a view says about a version is what log replay says about it.
- Missing history is never invented: the views begin with the earliest readable version.
- Only the commits and columns that a query needs are decoded and typed.
- Decoded history beyond `history.maxMemory` is spilled to temporary files.

May import `commit`, `scan`, `state`, `log`, `config`, `errors`.
"""
