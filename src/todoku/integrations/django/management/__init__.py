"""`manage.py todoku`."""
