"""Publishing in the caller's own transaction, with every kind of `tx` there is."""
