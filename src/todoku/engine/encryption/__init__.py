"""Encryption at rest: sealing what is published, opening what is executed, looking after the keys."""
