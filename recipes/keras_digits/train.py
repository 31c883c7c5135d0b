"""Handwritten digits of 8 x 8 pixels by Keras's own `model.fit`, on any number of workers.

Two lines make a plain Keras script a recorded, resumable and data-parallel one; they are numbered below.
The backend is Keras's own choice: KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch.
"""

import sys

try:
    import keras
    from sklearn.datasets import load_digits
except ImportError as error:
    sys.exit(f"This recipe needs {error.name}: pip install 'gscalar[tensorflow,recipes]'")

import gscalar

# 1. Open the run: it seeds all random numbers, and the job's values win over these.
run = gscalar.init(project="recipes", config={"epochs": 20, "batch_size": 32, "width": 128, "lr": 3e-3})
config = run.config

pixels, labels = load_digits(return_X_y=True)
x, y = (pixels / 16 - 0.5).astype("float32"), labels.astype("int32")
held_out = [index for index in range(len(y)) if index % 5 == 0]
trained_on = [index for index in range(len(y)) if index % 5]

model = keras.Sequential([
    keras.Input((64,)),
    keras.layers.Dense(config.width, activation="gelu"),
    keras.layers.Dropout(0.1),
    keras.layers.Dense(config.width, activation="gelu"),
    keras.layers.Dense(10),
])  # fmt: skip
model.compile(
    optimizer=keras.optimizers.AdamW(config.lr),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

# 2. Give `fit` the callback. Each worker takes its share of every batch, and a restart goes on where it was.
history = model.fit(
    x[trained_on],
    y[trained_on],
    batch_size=config.batch_size,
    epochs=config.epochs,
    validation_data=(x[held_out], y[held_out]),
    callbacks=[gscalar.keras.callback()],
    verbose=0,
)

if run.rank == 0:
    accuracy = history.history["val_accuracy"][-1]
    print(f"{accuracy:.1%} of the {len(held_out)} held-out digits are named rightly")
