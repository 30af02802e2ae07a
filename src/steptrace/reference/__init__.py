"""docs/gpu-results.md: a machine's committed results beside what the articles and this project claim.

`document` puts the page together; `articles` holds the figures of the articles, `studies` and `kernels` the tables.
"""
