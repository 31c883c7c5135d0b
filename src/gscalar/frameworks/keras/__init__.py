"""Legacy Keras, and Keras 3 on TensorFlow or PyTorch for the runtime."""
