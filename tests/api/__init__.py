"""What the package promises besides behaviour: names, documentation, layers, packaging."""
