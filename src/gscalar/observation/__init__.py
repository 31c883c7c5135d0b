"""Measuring a training and its machine."""
