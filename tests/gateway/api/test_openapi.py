"""The API's description against what is served and checked."""

from __future__ import annotations

from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, Goes
from gateway.api.openapi import description
from gateway.api.server import _public_app
from tests.gateway.api.conftest import MODEL, gateway


async def test_every_route_is_described_and_every_description_is_a_route() -> None:
    async with gateway([]) as gw:
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in _public_app(gw.services).router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
    described = {(method, path) for path, methods in description([])["paths"].items() for method in methods}
    assert described == routes


async def test_it_is_served_with_the_models_of_the_moment() -> None:
    async with gateway([]) as gw:
        document = await (await gw.get("/openapi.json")).json()
        page = await (await gw.get("/docs")).text()
    assert document["components"]["schemas"]["Chat"]["properties"]["model"]["enum"] == [MODEL]
    assert "POST /v1/chat/completions" in page
    assert "http://" not in page
    assert "https://" not in page


def test_every_field_that_is_taken_is_described_by_what_its_check_takes() -> None:
    schemas = description([])["components"]["schemas"]
    for name, table in (("Chat", CHAT_FIELDS), ("Completion", COMPLETION_FIELDS)):
        taken = {
            field for field, told in table.items() if told.goes in (Goes.GATEWAY, Goes.SAMPLING, Goes.TOP)
        }
        undescribed = taken - schemas[name]["properties"].keys()
        assert undescribed == set(), name


def test_references_lead_somewhere() -> None:
    document = description([])

    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [each for inner in value.values() for each in references(inner)]
        return [each for inner in value for each in references(inner)] if isinstance(value, list) else []

    names = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert names <= document["components"]["schemas"].keys()
