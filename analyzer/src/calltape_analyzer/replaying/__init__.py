"""Replaying recorded calls through models and exported programs, and checking whether a program
would accept them."""
