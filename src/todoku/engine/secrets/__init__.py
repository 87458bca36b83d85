"""Secrets that are kept elsewhere: only their ids travel in messages."""
