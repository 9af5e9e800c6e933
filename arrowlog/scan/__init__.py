"""Scan planning: select the files a predicate may match, explain the choice, read the rows.

Data skipping is conservative: a file is skipped only if its statistics prove that no row matches.
Missing or unreliable statistics keep the file, and `explain` reports the reason.

May import: `state`, `log`, `config`, `errors`.
"""
