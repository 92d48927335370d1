"""`python -m index`."""

from index.cli import main

if __name__ == "__main__":
    main(prog_name="python -m index")
