"""Encryption at rest: sealing published messages, opening them for execution, and managing the keys."""
