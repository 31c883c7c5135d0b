"""Adapters to training frameworks; each is imported only when its objects are seen."""
