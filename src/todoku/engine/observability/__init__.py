"""What the engine tells about itself: metrics, spans, log lines."""
