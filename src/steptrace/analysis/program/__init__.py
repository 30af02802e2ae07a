"""Where in the program time goes: labels, lines, flame graphs."""
