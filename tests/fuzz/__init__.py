"""Hostile requests to every route of the daemon, and hostile answers of receivers: seeded, bounded, repeatable."""
