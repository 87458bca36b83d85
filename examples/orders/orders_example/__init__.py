"""Orders that are sent once: seed 000's outbox worker protocol, on todoku."""
