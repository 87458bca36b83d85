"""The admin API, `/api/v1`: one table of operations, from which the routes and their description are made."""
