"""`Guardrail`: answers are checked before anybody sees them; what is wrong is corrected by the model, or blocked."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import attrs

from goliath_actors.abc import ModelEvent, ModelText
from goliath_actors.errors import ConfigError
from goliath_actors.hooks import AfterAnswer, BeforeRun, Extension, HookContext, Respond, StreamControl

__all__ = ["Block", "Correct", "Guardrail"]


@attrs.frozen
class Correct:
    """An objection that the model may put right: it is told `feedback` and answers again."""

    feedback: str


@attrs.frozen
class Block:
    """An objection that nothing can put right. `text` is said in the answer's place; blank: the guardrail's own."""

    reason: str
    text: str = ""


# Any: the application's context.
Check: TypeAlias = Callable[[HookContext[Any], str], "Correct | Block | Awaitable[Correct | Block | None] | None"]


class Guardrail(Extension[Any]):
    """Has every answer checked. The model is given all objections at once and may try again, within a budget.

    Arguments:
      checks: each is called with the hook's context and the answer's text, and returns None to accept it, a `Correct`,
        or a `Block`. Plain or async. All are asked, in order, whatever the others say.
      asks: the same for asks, before anything is done for them. There is nothing to correct there: any objection
        blocks.
      corrections: how often in a run the model may try again. The loop's `hook_retries` must allow it too; where that
        is less, the loop gives up first.
      text: what is said in place of an answer that is blocked, or still wrong when the budget is spent.
      hold: True: nothing is shown before it is checked. False: text streams, and is retracted if it was wrong.
      name: the extension's name; needed where an agent has two guardrails.

    A blocked answer is replaced: the run completes with `text`, which is saved, and `result.responded` says why.
    Answers that do not stream, a fallback's or another extension's, cannot be corrected; an objection to one has
    `text` said in its place.

    Register it last: answers are checked as other extensions leave them.

    Raises: `ConfigError`. In a run, a check that raises, or returns something else, fails the run.
    """

    def __init__(
        self,
        *checks: Check,
        asks: Iterable[Check] = (),
        corrections: int = 2,
        text: str = "I cannot answer that.",
        hold: bool = True,
        name: str = "guardrail",
    ) -> None:
        self._checks = checks
        self._ask_checks = (asks,) if callable(asks) else tuple(asks)
        for check in (*self._checks, *self._ask_checks):
            if not callable(check):
                raise ConfigError(f"Guardrail takes callables that check a text, not {check!r}")
        if not self._checks and not self._ask_checks:
            raise ConfigError("Guardrail needs at least one check")
        if isinstance(corrections, bool) or not isinstance(corrections, int) or corrections < 0:
            raise ConfigError(f"Guardrail(corrections=...) must be a whole number of at least 0, not {corrections!r}")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError("Guardrail(text=...) must be a string with text in it")
        self.name = name
        self._corrections = corrections
        self._text = text
        self._hold = hold

    async def before_run(self, ctx: HookContext[Any], question: BeforeRun) -> Respond | None:
        """Check the ask."""
        if question.entry == "resume":
            return None
        objections = await _objections(self._ask_checks, ctx, question.ask)
        if not objections:
            return None
        text = self._said(objections)
        ctx.state["settled"] = text
        return Respond(text, _reason(objections))

    async def transform_stream(
        self, ctx: HookContext[Any], events: AsyncIterator[ModelEvent], control: StreamControl
    ) -> AsyncIterator[ModelEvent]:
        """Check a reply when it is complete: let it through, have it corrected, or block it."""
        held: list[ModelEvent] = []
        pieces: list[str] = []
        async for event in events:
            if isinstance(event, ModelText):
                pieces.append(event.text)
            if self._hold:
                held.append(event)
            else:
                yield event
        text = "".join(pieces)
        objections = await _objections(self._checks, ctx, text) if text.strip() else []
        ctx.state["settled"] = text
        if objections:
            tried = ctx.state.get("tried", 0)
            hopeless = any(isinstance(objection, Block) for objection in objections)
            if not hopeless and tried < self._corrections:
                ctx.state["tried"] = tried + 1
                await control.retry(_feedback(objections))
            ctx.state["settled"] = said = self._said(objections)
            await control.abort(_reason(objections), replacement=said)
        for event in held:
            yield event

    async def after_answer(self, ctx: HookContext[Any], question: AfterAnswer) -> str | None:
        """Check an answer that did not stream through here as it is now."""
        if question.text == ctx.state.get("settled"):
            return None
        objections = await _objections(self._checks, ctx, question.text)
        return self._said(objections) if objections else None

    def _said(self, objections: list[Correct | Block]) -> str:
        texts = [objection.text for objection in objections if isinstance(objection, Block)]
        return next((text for text in texts if text.strip()), self._text)


async def _objections(checks: Iterable[Check], ctx: HookContext[Any], text: str) -> list[Correct | Block]:
    """Ask every check, in order."""
    objections: list[Correct | Block] = []
    for check in checks:
        answer = check(ctx, text)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Correct | Block):
            objections.append(answer)
        elif answer is not None:
            # Neither guess is safe: True may be meant as "fine" and as "found something".
            raise TypeError(f"a check must return None, a Correct or a Block, not {answer!r}")
    return objections


def _feedback(objections: list[Correct | Block]) -> str:
    texts = [objection.feedback for objection in objections if isinstance(objection, Correct)]
    return texts[0] if len(texts) == 1 else "\n".join(f"- {text}" for text in texts)


def _reason(objections: list[Correct | Block]) -> str:
    return "; ".join(
        objection.reason if isinstance(objection, Block) else objection.feedback for objection in objections
    )
