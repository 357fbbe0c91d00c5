"""``python -m calltape_analyzer.cli``, where scripts are not on the path."""

from calltape_analyzer.cli import main

main()
