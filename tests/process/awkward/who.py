"""Everything that a program can ask about itself."""

import os
import sys

print(__name__, __file__, __doc__, __package__, __spec__, type(__loader__).__name__)
print(sorted(name for name in globals() if name != "__cached__"), __builtins__)
print(sys.argv, getattr(sys, "orig_argv", None))
print(sys.path)
print(sys.flags, sys.warnoptions, sys._xoptions)
print(sys.executable, sys.prefix, sys.exec_prefix, sys.base_prefix)
print(os.getcwd(), os.getpid() == os.getsid(0) == os.getpgid(0))
print(open("/proc/self/cmdline", "rb").read(), open("/proc/self/comm").read())
print(os.path.realpath("/proc/self/exe"))
print(sys.modules["__main__"].__dict__ is globals(), sys._getframe().f_back)
print(sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), sys.getswitchinterval())
print(sys.dont_write_bytecode, sys.pycache_prefix, "sitecustomize" in sys.modules)
