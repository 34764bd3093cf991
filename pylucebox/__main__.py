"""`python -m pylucebox`: the command `lucebox` of a checkout that is not installed."""

from pylucebox.cli.main import main

if __name__ == "__main__":
    main()
