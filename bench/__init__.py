"""Benchmarks: each runs what it is compared with in the same run, and prints the ratio."""
