"""What cards and attempts use while a run lives: samples, thinned, in the run's `metrics.db`.

Owns the store and the process that fills it. May be lost without harm: nothing is decided by it.
"""
