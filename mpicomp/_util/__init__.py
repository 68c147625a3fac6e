"""Partitions, files, environment variables and child processes, without other parts of the package but errors."""
