"""``python -m embedcache``, for machines where the command is not on the PATH."""

from embedcache.cli.main import main

if __name__ == "__main__":
    main()
