"""Workflows: functions whose steps are remembered, so that a run goes on where it stopped (decision 47)."""
