"""When one machine is not enough."""
