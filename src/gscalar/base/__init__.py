"""What every layer may use: errors, ids, units, canonical JSON. No I/O, no clock, no randomness."""
