"""Transactions: every change of a table is one commit, made exactly once or not at all.

Requests are validated before anything is written. Concurrent commits that conflict raise a
`CommitConflict`; a commit whose outcome cannot be determined raises `CommitStateUnknown`.
May import `scan`, `state`, `log`, `config`, `errors`.
"""
