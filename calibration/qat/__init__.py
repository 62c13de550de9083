"""Quantization-aware training: float weights that stay right under INT8, taught by the float model itself."""
