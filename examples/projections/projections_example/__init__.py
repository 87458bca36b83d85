"""Seed 002: one table of documents, and two projections that stay equal to it."""
