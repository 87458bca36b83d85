"""Projections: destinations that keep another store equal to the events of some topics."""
