"""The worker: its claimer, pools, settler, heartbeat, watchdog, breakers and maintenance."""
