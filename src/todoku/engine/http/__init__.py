"""Publishing of HTTP requests; their queues, schedules, events and dead letters; API tokens and signing keys."""
