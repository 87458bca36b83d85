"""Projections against a real search server, on both databases."""
