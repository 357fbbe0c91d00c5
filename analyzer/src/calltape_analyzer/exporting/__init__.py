"""From a tape to verified programs."""
