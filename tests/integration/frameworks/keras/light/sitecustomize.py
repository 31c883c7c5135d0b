"""For the trainings of these tests: what TensorFlow and Keras import where they find it, which takes seconds."""

import os
import sys

UNUSED = {"sklearn", "jax"} - {os.environ.get("KERAS_BACKEND")}
sys.modules.update(dict.fromkeys(UNUSED))  # as where they are not installed
