"""The parts of structural tags, the language in which vLLM and SGLang take constraints on an answer.

Each function gives one format as plain JSON values (xgrammar 0.2.7 and later know all of them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Format = dict[str, Any]


def structural_tag(content: Format) -> Format:
    return {"type": "structural_tag", "format": content}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def either(elements: Sequence[Format]) -> Format:
    """One of them; at least one must be given."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def star(content: Format) -> Format:
    """Any number of times."""
    return {"type": "star", "content": content}


def plus(content: Format) -> Format:
    """Once or more."""
    return {"type": "plus", "content": content}


def token(token_id: int) -> Format:
    return {"type": "token", "token": token_id}


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def any_tokens(without: Sequence[int]) -> Format:
    """Any tokens but these."""
    return {"type": "any_tokens", "exclude_tokens": list(without)}


def regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}


def grammar(ebnf: str) -> Format:
    return {"type": "grammar", "grammar": ebnf}


def json_value(schema: Mapping[str, Any] | bool, without: Sequence[str] = ()) -> Format:
    """JSON that keeps to a schema, without runs of space; strings in it do not contain `without`.

    The engine drops bounds on a string's length when it must look for texts: the bounds then go first.
    """
    content: Format = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}
    if without and not _bounds_a_length(schema):
        content["excludes"] = list(without)
    return content


def _bounds_a_length(schema: object) -> bool:
    text = json.dumps(schema)
    return '"minLength"' in text or '"maxLength"' in text
