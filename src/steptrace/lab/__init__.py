"""The training program of our own studies: its loop, its parts, and the passes that it adds to its measurement."""
