"""What is on disk: names, envelopes, actions, and which files make up a version.

Bytes become Arrow here, once. Everything but `store` is pure: no I/O, no clock, no randomness.
May import: `config`, `errors`.
"""
