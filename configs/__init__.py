"""Recipes: one file a family, ``get_config(argument)`` returns an ml_collections ConfigDict."""
