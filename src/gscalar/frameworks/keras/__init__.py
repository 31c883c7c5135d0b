"""Legacy Keras, and Keras 3 on TensorFlow, PyTorch or JAX for the runtime."""
