import __main__
import inspect
import linecache
import os
import sys


def here(x: "int") -> "str":
    """A docstring."""
    return x


print(__main__ is sys.modules["__main__"], __main__.__doc__, __main__.__file__ == __file__)
print(inspect.getsource(here), inspect.getsourcefile(here) == __file__)
print(here.__code__.co_filename, here.__code__.co_flags, here.__module__, here.__annotations__)
print(repr(linecache.getline(__file__, 1)))
import inside

print(inside is __main__, inside.__file__ == os.path.abspath(__file__), inside.__spec__.name)
import doctest

print(doctest.testmod())
import runpy

print(sorted(runpy.run_path(os.path.join(os.path.dirname(__file__), "beside", "neighbour.py"))))
try:
    from . import nothing
except ImportError as error:
    print(error)
