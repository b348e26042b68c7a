"""An LSM-tree storage engine in plain Python, to be read, measured and crashed."""
