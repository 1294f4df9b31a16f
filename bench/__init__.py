"""Benchmarks: each module is one command that prints a table and a ratio against a stated reference."""
