"""Functions as jobs: declaring them, checking and decoding their arguments, looking after their calls."""
