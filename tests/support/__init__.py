"""Helpers of the tests: models, generators, faulty stores and programs to kill."""
