"""Durable things, one folder an aggregate: records, catalog, checkpoints."""
