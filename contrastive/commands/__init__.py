"""One module a command: each puts the rooms below together for one purpose."""
