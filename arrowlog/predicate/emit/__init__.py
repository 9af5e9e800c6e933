"""Emitters: a syntax tree to the expressions of an engine."""
