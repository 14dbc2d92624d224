"""What an uncaught device error was about: which tensors were where, the odd one, what to change.

    error ─messages─▶ frames ─search─▶ tensors ─verdict─▶ the odd ones ─words, advice─▶ text

Owns the words of the report and the look into a traceback's frames. It never raises, never runs
anything on a device, never waits for one (of a tensor it reads shape, dtype and device, never a
value), never calls a method or property of the program's own objects, and never prints a value
other than a device's name. Its work is bounded in objects, depth, time and output.

Standard library only, Python 3.8 and newer, and no import from the rest of gpulaunch:
`../inject/sitecustomize.py` loads it by path inside people's interpreters, under a name of its own;
`gpulaunch.torch` imports it. torch is looked up in sys.modules and never imported.
"""
