"""Messages and index lists on the wire, and the validation of what other ranks send."""
