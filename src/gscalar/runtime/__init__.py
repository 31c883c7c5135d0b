"""One worker's life, without any framework."""
