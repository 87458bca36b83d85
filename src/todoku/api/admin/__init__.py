"""The admin API, `/api/v1`. Routes and the OpenAPI document are both built from one table of operations."""
