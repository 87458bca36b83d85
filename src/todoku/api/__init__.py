"""The HTTP APIs: thin layers over the engine."""
