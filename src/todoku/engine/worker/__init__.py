"""Where attempts run: slots in the event loop, threads, processes."""
