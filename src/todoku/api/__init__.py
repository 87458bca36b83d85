"""HTTP, as thin shells over the engine."""
