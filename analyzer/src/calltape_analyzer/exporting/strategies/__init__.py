"""How a variant, or a part of it, is traced."""
