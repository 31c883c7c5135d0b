"""The shared model of a step: cost of collectives, replay, edits, scaling curves. Pure."""
