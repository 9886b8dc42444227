"""The API's description, OpenAPI 3.1, from the tables and shapes that requests are checked by."""

from __future__ import annotations

import html
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web

from gateway.api.anthropic.request import MessagesBody
from gateway.api.checks import Schema, schema_of
from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, Field, Goes
from gateway.api.responses.request import SHAPES, ResponsesBody
from gateway.api.services import SERVICES, Services
from gateway.api.tokens import DetokenizeBody, TokenizeBody

_REF = "#/components/schemas/{name}"
_BODIES = (MessagesBody, ResponsesBody, TokenizeBody, DetokenizeBody)
_COUNTED = {"MessagesBody": "max_tokens", "ResponsesBody": "max_output_tokens"}
"""Numbers that are kept as they are spelled, whose shapes say nothing."""
_ROLES = ["system", "developer", "user", "assistant", "tool"]
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": _ROLES},
        "content": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        },
    },
}
_ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or unknown.",
    "403": "The API key may not do this.",
    "404": "The model is not served here.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests; `Retry-After` says when to try again.",
    "502": "A worker failed.",
    "503": "No worker can take the request now; `Retry-After` says when to try again.",
}

POSTS: Mapping[str, tuple[str, str, bool]] = {
    "/v1/chat/completions": ("Answer a chat", "Chat", True),
    "/v1/completions": ("Continue one or several prompts", "Completion", True),
    "/v1/responses": ("Answer, in OpenAI's Responses shape; nothing is stored", "ResponsesBody", True),
    "/v1/messages": ("Answer, in Anthropic's Messages shape", "MessagesBody", True),
    "/v1/messages/count_tokens": ("Count the tokens of a Messages request", "MessagesCount", False),
    "/v1/chat/completions/render": ("The token ids of a chat; nothing is generated", "Chat", False),
    "/tokenize": ("Text, or a chat, to token ids", "TokenizeBody", False),
    "/detokenize": ("Token ids to text", "DetokenizeBody", False),
}
"""Summary, schema of the body, and whether the answer can be streamed."""
GETS: Mapping[str, tuple[str, str]] = {
    "/v1/models": ("Models that are served", "200"),
    "/v1/models/{model}": ("One model", "200 404"),
    "/health": ("Whether the gateway is well, and its workers' states", "200 503"),
    "/live": ("Whether the process runs", "200"),
    "/ready": ("Whether some model can be served", "200 503"),
    "/version": ("The gateway's version", "200"),
    "/metrics": ("Counters, for Prometheus", "200"),
    "/openapi.json": ("This description", "200"),
    "/docs": ("The same for people to read", "200"),
}


def description(models: list[str]) -> dict[str, Any]:
    """The document; `models` are those that are served now."""
    paths: dict[str, Any] = {path: {"post": _post(path, *told)} for path, told in POSTS.items()}
    paths |= {path: {"get": _get(path, *told)} for path, told in GETS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvgateway", "version": version("kvgateway")},
        "paths": paths,
        "components": {
            "schemas": _schemas(models),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _schemas(models: list[str]) -> dict[str, Schema]:
    model: Schema = {"type": "string", "enum": models} if models else {"type": "string", "minLength": 1}
    kinds = (*_BODIES, *SHAPES.values())
    own, shapes = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas: dict[str, Schema] = {
        **shapes,
        "Chat": _of_table(CHAT_FIELDS, ["model", "messages"]),
        "Completion": _of_table(COMPLETION_FIELDS, ["model", "prompt"]),
    }
    schemas["Chat"]["properties"]["messages"] = {"type": "array", "minItems": 1, "items": _MESSAGE}
    for name, counted in _COUNTED.items():
        schemas[name]["properties"][counted] = {"type": "integer", "minimum": 1}
    spelled = dict(zip(SHAPES, own[len(_BODIES) :], strict=True))
    schemas["ResponsesBody"]["properties"] |= {name: _or_null(each) for name, each in spelled.items()}
    required = {
        "MessagesBody": ["model", "messages", "max_tokens"],
        "ResponsesBody": ["model", "input"],
        "TokenizeBody": ["prompt"],
        "DetokenizeBody": ["tokens"],
    }
    for name, names in required.items():
        schemas[name]["required"] = names
        for each in names:
            schemas[name]["properties"][each] = _present(schemas[name]["properties"][each])
    for name in ("Chat", "Completion", *required):
        schemas[name]["properties"]["model"] = model
    schemas["MessagesCount"] = schemas["MessagesBody"] | {"required": ["model", "messages"]}
    schemas["Error"] = _ERROR
    return schemas


def _of_table(table: Mapping[str, Field], required: list[str]) -> Schema:
    """Fields that are refused are left out: only the values that ask for nothing are taken."""
    shown = {
        name: field
        for name, field in table.items()
        if field.goes not in (Goes.REFUSED, Goes.STEERING) and schema_of(field.check)
    }
    properties = {
        name: schema_of(field.check) if name in required else _or_null(schema_of(field.check))
        for name, field in shown.items()
    }
    return {"type": "object", "required": required, "properties": properties}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _present(schema: Schema) -> Schema:
    """Without null."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    kept = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return kept | ({"anyOf": options} if options else {})


_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def _post(path: str, summary: str, schema: str, streams: bool) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": _REF.format(name=schema)}}}
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content["text/event-stream"] = {}
    answers = {"200": {"description": "The answer.", "content": content}, **_failures(*_ERRORS)}
    return {
        "summary": summary,
        "operationId": _name("post", path),
        "requestBody": {"required": True, "content": body},
        "responses": answers,
    }


def _get(path: str, summary: str, statuses: str) -> dict[str, Any]:
    told: dict[str, Any] = {"summary": summary, "operationId": _name("get", path)}
    if "{model}" in path:
        place = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        told["parameters"] = [place]
    told["responses"] = {status: {"description": summary + "."} for status in statuses.split()}
    return told | {"responses": told["responses"] | _failures("401", "403", "429")}


def _failures(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}


def _name(method: str, path: str) -> str:
    return method + path.translate(str.maketrans("/.{}", "____"))


def _described(services: Services) -> dict[str, Any]:
    return description(services.fleet.models())


async def openapi(request: web.Request) -> web.Response:
    """GET /openapi.json."""
    body = msgspec.json.encode(_described(request.app[SERVICES]))
    return web.Response(body=body, content_type="application/json")


async def docs(request: web.Request) -> web.Response:
    """GET /docs: one page that needs nothing from elsewhere."""
    page = _page(_described(request.app[SERVICES]))
    return web.Response(text=page, content_type="text/html", charset="utf-8")


def _page(document: Mapping[str, Any]) -> str:
    parts = []
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(told['summary'])}.</p>")
            if "requestBody" in told:
                ref = told["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                parts.append(_field_list(document["components"]["schemas"][ref.rpartition("/")[2]]))
    title = f"kvgateway {html.escape(document['info']['version'])}"
    style = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}li{margin:.2em 0}"
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{style}</style>"
    intro = f'<h1>{title}</h1><p>The same for machines: <a href="openapi.json">openapi.json</a>.</p>'
    return head + intro + "".join(parts)


def _field_list(schema: Schema) -> str:
    required = schema.get("required", ())
    items = []
    for name, each in schema["properties"].items():
        shown = html.escape(msgspec.json.encode(each).decode())
        mark = " (required)" if name in required else ""
        items.append(f"<li><code>{html.escape(name)}</code>{mark}: <code>{shown[:300]}</code></li>")
    return f"<ul>{''.join(items)}</ul>"
