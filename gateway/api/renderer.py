"""What most renderers leave out."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.serving.token_watch import TokenDetail


class Renderer:
    """Tells nothing of tokens."""

    def on_token(self, index: int, token: TokenDetail) -> None: ...

    def on_prompt(self, tokens: Sequence[TokenDetail]) -> None: ...
