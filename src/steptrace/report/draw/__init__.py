"""The pictures of a page, as SVG: charts, pictures in cells, and that of a step."""
