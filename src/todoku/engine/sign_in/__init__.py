"""Signing in to the dashboard: users with passwords, and sessions of browsers."""
