"""What one pastes into an issue: findings and reports as Markdown.

In come a tape, and what a command found. Out goes text that is bounded in length, that no content
breaks out of, and that tells nothing private unless it is asked for.
"""
