import os
import sys

import neighbour

print(sys.argv, sys.path[0], __file__, neighbour.WHERE, os.getcwd())
raise RuntimeError(sys.argv[0])
