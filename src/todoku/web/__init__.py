"""The dashboard: pages over the operations of the admin API."""
