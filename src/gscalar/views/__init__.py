"""Read-only joins for people."""
