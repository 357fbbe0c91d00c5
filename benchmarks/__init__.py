"""What calltape costs, as ratios measured side by side. Run with ``python -m benchmarks``."""
