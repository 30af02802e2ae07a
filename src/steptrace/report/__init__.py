"""From comparison.json to one HTML page."""
