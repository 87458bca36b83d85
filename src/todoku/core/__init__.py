"""The pure heart: values and decisions. No I/O, no clock, no randomness."""
