import sys

print("package", sys.argv[0], __name__)
