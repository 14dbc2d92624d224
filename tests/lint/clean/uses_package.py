# run: python {name}
from package import tools
from package.models import build

if __name__ == "__main__":
    build(tools.DEVICE)
