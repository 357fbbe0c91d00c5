"""What works around torch while a model is traced: a module for each fault or gap."""
