"""Verifiers for the webhooks of each source: how it signs its requests, and where its event ids and types are."""
