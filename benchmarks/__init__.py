"""Speed and memory of a deep kernel machine beside a network of the same widths."""
