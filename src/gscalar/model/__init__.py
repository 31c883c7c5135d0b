"""The vocabulary: frozen dataclasses with parsing and validation. No I/O, no clock."""
