"""The show: everything that can go wrong with a webhook goes wrong, and nothing is lost."""
