"""Metrics, spans, log lines and alerts of the engine."""
