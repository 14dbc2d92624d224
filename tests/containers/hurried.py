"""The carrier with shorter time limits, which are named first: `starting.FIRST_LOOK=0.1`.

`forks=1`: it can fork once, and then no more; the file `refused` says that it has tried.
"""

import errno
import importlib.util
import os
import sys

limits = []
while "=" in sys.argv[1]:
    limits.append(sys.argv.pop(1))
place = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("agent_main", place)
assert spec
assert spec.loader
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)


def limit_forks(count: int) -> None:
    fork, left = os.fork, iter(range(count))

    def limited() -> int:
        if next(left, None) is None:
            with open(f"{os.environ['GPULAUNCH_INSIDE_WORK']}/refused", "w") as file:
                file.write("a fork")
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    os.fork = limited


main = program.load(sys.argv.pop(1)).main
for limit in limits:
    name, _, seconds = limit.partition("=")
    module, _, constant = name.partition(".")
    if module == "forks":
        limit_forks(int(float(seconds)))
        continue
    setattr(sys.modules[f"{program.NAME}.container.{module}"], constant, float(seconds))
main()
