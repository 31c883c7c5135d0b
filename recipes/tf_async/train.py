"""Handwritten digits of 8 x 8 pixels by asynchronous steps: workers compute, a parameter server holds the variables.

Nobody waits for the others at every step: each worker reads the newest weights, and its gradients move them at once.
Four lines make a TensorFlow script a recorded and resumable one; they are numbered below.
"""

import sys

try:
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits
except ImportError as error:
    sys.exit(f"This recipe needs {error.name}: pip install 'gscalar[tensorflow,recipes]'")

import gscalar

# 1. Open the run, in every process: the chief, the workers and the parameter server.
run = gscalar.init(project="recipes", config={"steps": 600, "batch_size": 32, "width": 64, "lr": 0.05})
config = run.config
# 2. Only the chief comes out of this call. The others serve it, and end as it ends.
strategy = gscalar.keras.distribute()
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

pixels, labels = load_digits(return_X_y=True)
x, y = (pixels / 16 - 0.5).astype("float32"), labels.astype("int32")
held_out = [index for index in range(len(y)) if index % 5 == 0]
trained_on = [index for index in range(len(y)) if index % 5]
inputs, targets = x[trained_on], y[trained_on]

with strategy.scope():
    model = keras.Sequential([
        keras.Input((64,)),
        keras.layers.Dense(config.width, activation="gelu"),
        keras.layers.Dense(10),
    ])  # fmt: skip
    optimizer = keras.optimizers.SGD(config.lr, momentum=0.9)
    # 3. From now on checkpoints hold them; a restart has them back.
    run.prepare(model, optimizer)


def read_digits() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(len(targets)).repeat().batch(config.batch_size)


@tf.function
def train_step(iterator):
    def on_worker(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.run(on_worker, args=next(iterator))


# 4. Each result of a worker is a step of the run: recorded, and saved now and then.
batches = iter(coordinator.create_per_worker_dataset(read_digits))
for loss in gscalar.keras.async_steps(coordinator, train_step, batches, steps=config.steps, samples=config.batch_size):
    if run.state.step % 50 == 0:
        run.log({"loss": loss})

named = model(x[held_out]).numpy().argmax(axis=1)
accuracy = float((named == y[held_out]).mean())
run.log({"val/accuracy": accuracy})
print(f"{accuracy:.1%} of the {len(held_out)} held-out digits are named rightly")
