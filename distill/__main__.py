"""``python -m distill``, the form that launchers of several processes start."""

from distill.cli.main import main

if __name__ == "__main__":
    main()
