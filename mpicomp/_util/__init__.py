"""Arithmetic of partitions, files, environment variables and child processes: imports nothing else of the package."""
