import sys

from . import tool

print(__name__, __file__, __package__, __spec__.name, sys.argv, sys.path[0], tool)
