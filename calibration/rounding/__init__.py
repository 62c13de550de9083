"""Weights that are rounded to fit the activations they meet, instead of to the nearest code."""
