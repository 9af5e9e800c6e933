"""What to read: the files that may hold rows a predicate is true for, and why.

A file is dropped only if no row in it can match; what is unknown is kept, and said.
May import: `state`, `log`, `config`, `errors`.
"""
