"""JSON in and out: a canonical form, plain data of anything, and parsing what a model wrote.

One room in a folder. Strict throughout: NaN, infinities and halves of surrogate pairs are no JSON, and nothing
here ever completes or guesses a value.
"""

from ._plain import canonical, snapshot
from ._reading import Parsed, parse_arguments, parse_reply
from ._strict import MAX_DEPTH, MAX_NODES, dumps, json_problem

__all__ = [
    "MAX_DEPTH",
    "MAX_NODES",
    "Parsed",
    "canonical",
    "dumps",
    "json_problem",
    "parse_arguments",
    "parse_reply",
    "snapshot",
]
