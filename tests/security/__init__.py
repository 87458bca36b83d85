"""One file for each item of the security review: the number in its name is the item's."""
