"""Values and decisions without side effects: no I/O, no clock, no randomness."""
