"""What cards and attempts use while a run lives: samples, thinned, in the run's `metrics.db`.

Owns the database: what writes it, bounds it and reads it. `gpulaunch.observe.sampler`
is the process that fills it. May be lost without harm: nothing is decided by it.
"""
