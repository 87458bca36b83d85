"""A shop that knows nothing of todoku, and three places that learn of its changes."""
