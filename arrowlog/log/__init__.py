"""The log on disk: file names, compression, actions, and the log segment of a version.

Bytes are decoded to Arrow here, once. Everything except `store` is pure: no I/O, no clock, no
randomness. May import `config` and `errors`.
"""
