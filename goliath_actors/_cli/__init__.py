"""The rooms of the command line. `goliath_actors.cli` opens them; each imports what is heavy only when it is used.

Built on the public API only.
"""
