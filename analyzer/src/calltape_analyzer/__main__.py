"""``python -m calltape_analyzer``: the ``calltape`` command, if scripts are not on the path."""

from calltape_analyzer.cli import main

if __name__ == "__main__":
    main()
