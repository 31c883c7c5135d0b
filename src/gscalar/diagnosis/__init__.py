"""What holds a training back: features of a timeline, hypotheses with evidence, findings, and what fixes are worth. Pure."""
