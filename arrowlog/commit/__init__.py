"""What changes a table: a commit lands in the log exactly once or not at all, and says which.

Promises: it is checked before anything is written; what does not go together with it is told.
May import `scan`, `state`, `log`, `config`, `errors`.
"""
