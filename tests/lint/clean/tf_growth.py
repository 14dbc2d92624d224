# run: python {name} --epochs 3
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
with tf.device("/GPU:0" if gpus else "/CPU:0"):
    model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(tf.random.normal((32, 4)), tf.random.normal((32, 1)), epochs=3)
