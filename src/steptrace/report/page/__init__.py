"""What all pages have in common: frame, style, components, the meaning of figures, findings."""
