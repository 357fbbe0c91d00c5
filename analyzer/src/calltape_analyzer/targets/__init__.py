"""The findings of an inference in the terms of each tool that exports."""
