"""The commands: parse, call a room, render the answer. Nothing is decided here."""
