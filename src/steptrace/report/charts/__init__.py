"""The pictures of all pages: one module a kind of picture, each a function that returns SVG.

- `cells`: pictures in the cells of a table, on a scale that all rows share.
- `lanes`: what ran when, one row above the other, on one scale of time.
- `strip`: bars of parts, side by side.
- `waterfall`: from one length to another, with a bar for each thing that makes the difference.
- `lines`: how a figure of each row changes with a few values.
- `icicle`: a tree whose boxes are as wide as their share.
- `scatter`: points on two axes.
- `heat_map`: a matrix of values as colours.
- `area`: bytes held over time.

They stand on `palette` (which part has which colour), `scale` (axes) and `svg` (elements). Colours are custom
properties of the page's style sheet, so that a picture follows light, dark and print.
"""
