"""``python -m distill``, which is what launchers of several processes start."""

from distill.cli.main import main

if __name__ == "__main__":
    main()
