"""What a trained model has learned, to look at: pictures, and pages with everything inside."""
