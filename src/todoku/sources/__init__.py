"""Where webhooks come from: how each source signs, and what it calls its events."""
