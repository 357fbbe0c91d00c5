"""Making tapes from other tapes (filter, merge, recover), and diagnosing tapes."""
