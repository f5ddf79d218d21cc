"""``python -m hsdag``."""

from hsdag.cli.app import main

if __name__ == "__main__":
    main()
