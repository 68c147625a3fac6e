"""Checks and recovery around collectives: agreement, call log, watchdog, fault injection, lost ranks."""
