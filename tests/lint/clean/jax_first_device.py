# run: python {name}
import jax
import jax.numpy as jnp
import numpy as np

devices = jax.devices()
print("devices:", devices)
x = jax.device_put(jnp.ones((128, 128)), devices[0])
step = jax.jit(lambda a: a @ a.T)
if len(devices) > 1:
    y = jax.device_put(x, jax.devices()[1])
table = np.arange(4)
print(step(x)[1], table[1])
