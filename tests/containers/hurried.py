"""The carrier with shorter time limits, which are named first: `starting.FIRST_LOOK=0.1`."""

import importlib.util
import sys

limits = []
while "=" in sys.argv[1]:
    limits.append(sys.argv.pop(1))
place = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("farside_main", place)
assert spec
assert spec.loader
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
main = program.load(sys.argv.pop(1)).main
for limit in limits:
    name, _, seconds = limit.partition("=")
    module, _, constant = name.partition(".")
    setattr(sys.modules[f"{program.NAME}.contain.{module}"], constant, float(seconds))
main()
