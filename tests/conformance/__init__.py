"""The conformance suite IS the store port: every test runs on SQLite and on a real PostgreSQL."""
