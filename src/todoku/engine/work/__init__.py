"""The parts of a worker, beside the line itself: its threads, its lease, what it holds and what it may take."""
