import sys

print(
    __name__,
    __package__,
    sys.argv,
    __spec__ and __spec__.name,
    sys.flags.safe_path if hasattr(sys.flags, "safe_path") else None,
)
if __name__ == "__main__":
    print(missing)
