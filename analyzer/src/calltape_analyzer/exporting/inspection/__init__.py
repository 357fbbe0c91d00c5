"""What a model depends on besides the values of its arguments, found out before it is traced."""
