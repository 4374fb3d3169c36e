"""``python -m embedcache``, for where the command itself is not on the path."""

from embedcache.cli.main import main

if __name__ == "__main__":
    main()
