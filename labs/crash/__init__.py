"""Crash testing of the engine: a recorded history, every crash point of its disk, and what must hold after each."""
