"""Capture: changes of PostgreSQL tables that know nothing of todoku become messages (docs/capture.md)."""
