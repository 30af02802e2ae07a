"""The figures of a page: charts by Matplotlib (`chart`), the picture of a step and the flame graph as SVG (`svg`)."""
