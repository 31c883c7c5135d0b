"""Shipped conformance suites, builders, fake clock."""
