"""From Python types and functions to JSON schemas, and from a model's JSON to typed values.

One room in a folder: readers of types, parameters of functions, schemas from elsewhere, structured answers.
"""

from ._by_hand import is_async, object_schema, parsed_by, takes_nothing, takes_second
from ._functions import Parameter, Parameters, plain_object
from ._output import OutputSchema
from ._problems import Checked, InputProblems, Problem
from ._raw import RawSchema
from ._readers import schema_of
from ._signature import Signature, read_function

__all__ = [
    "Checked",
    "InputProblems",
    "OutputSchema",
    "Parameter",
    "Parameters",
    "Problem",
    "RawSchema",
    "Signature",
    "is_async",
    "object_schema",
    "parsed_by",
    "plain_object",
    "read_function",
    "schema_of",
    "takes_nothing",
    "takes_second",
]
