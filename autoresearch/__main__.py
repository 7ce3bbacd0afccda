"""`python -m autoresearch`."""

from autoresearch.cli import main

if __name__ == "__main__":
    main()
