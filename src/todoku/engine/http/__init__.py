"""HTTP requests on the line: what is published to URLs, and everything that is asked about it afterwards."""
