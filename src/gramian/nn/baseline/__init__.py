"""The residual network beside which the paper puts its deep kernel machine."""
