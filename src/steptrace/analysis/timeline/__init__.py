"""One step as a picture shows it."""
