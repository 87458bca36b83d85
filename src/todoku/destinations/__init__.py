"""Destinations: each public module sends messages to one kind of receiver."""
