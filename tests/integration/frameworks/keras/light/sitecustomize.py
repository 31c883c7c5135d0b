"""For the trainings of these tests: Keras wraps scikit-learn where it is, and importing that takes seconds."""

import sys

sys.modules["sklearn"] = None  # type: ignore[assignment]  # as where it is not installed
