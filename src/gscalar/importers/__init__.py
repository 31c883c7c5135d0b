"""Sources that others wrote, as step timelines: profiler traces and tables of operations."""
