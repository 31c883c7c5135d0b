"""What holds a training back: features, hypotheses with evidence, findings, and what fixes are worth. Pure."""
