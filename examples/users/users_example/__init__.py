"""Users who are welcomed: seed 003's worker system, on todoku."""
