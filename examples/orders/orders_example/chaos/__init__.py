"""The show: one order for one key, whatever is repeated, and whoever is killed."""
