"""The pictures of a page, as SVG: charts, pictures in cells, flame graphs, and that of a step."""
