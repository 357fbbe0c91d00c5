"""What one pastes into an issue: what a tape is of, as Markdown.

In comes a tape. Out goes text that is bounded in length, that no content
breaks out of, and that tells nothing private.
"""
