"""The tape format: models, limits and framing, without torch or NumPy.

``FORMAT.md`` beside this package's sources is the specification; this is its Python form, used by
the recorder to write and by the analyzer to read.
"""

from calltape_schema.errors import Kind, Problem, TapeError

__all__ = ["Kind", "Problem", "TapeError", "__version__"]

__version__ = "0.1.0"
