"""The daemon: worker processes under a supervisor, its health, and how it stops."""
