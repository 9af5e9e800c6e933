"""Parsers: every form in which a user writes a predicate to one syntax tree."""
