"""Memory at the peak and over the window."""
