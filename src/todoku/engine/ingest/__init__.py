"""Events from outside: which sources an App has, and how a request of theirs becomes a message."""
