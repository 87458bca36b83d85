"""Events from outside: the sources of an App, and how their requests become messages."""
