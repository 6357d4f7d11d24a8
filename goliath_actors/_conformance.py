"""What a store has to do, as checks that any store can be put through; `testing` hands them on to users.

Plain functions on the public contract: each opens the store on its own and works on keys of its
own, so that all of them may share one database.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio

from .stores import _checks_content as content
from .stores import _checks_turns as turns
from .stores._trial import MakeStore, PassTime, Trial

__all__ = ["StoreCheck", "StoreConformance", "store_conformance"]


@attrs.frozen
class StoreCheck:
    """One check: call it with a function that makes the store. `__name__` is a sentence, shown by pytest as its id."""

    __name__: str
    _body: Callable[[Trial], Awaitable[None]]

    async def __call__(self, make_store: MakeStore, *, pass_time: PassTime = trio.sleep) -> None:
        """Put a store through this check.

        Arguments: `make_store` returns a store that is not entered yet; a durable one returns to the same data each
        time. `pass_time(seconds)` lets the clock of its leases advance; the default waits for real.

        Raises: `AssertionError`, or what the store raised.
        """
        await self._body(Trial(make_store, pass_time, self.__name__))


@attrs.frozen
class StoreConformance:
    """All checks: iterate over them, or call it to go through them in order. The rules are those of `abc.Store`.

    In pytest each becomes a test of its own:

        @pytest.mark.parametrize("check", store_conformance)
        async def test_my_store(check, tmp_path):
            await check(lambda: MyStore(tmp_path / "file"))
    """

    checks: tuple[StoreCheck, ...]

    def __iter__(self) -> Iterator[StoreCheck]:
        return iter(self.checks)

    def __len__(self) -> int:
        return len(self.checks)

    def __contains__(self, check: object) -> bool:
        return check in self.checks

    async def __call__(self, make_store: MakeStore, *, pass_time: PassTime = trio.sleep) -> None:
        """Put a store through every check, arguments as for one; the first that fails is named in a note."""
        for check in self.checks:
            try:
                await check(make_store, pass_time=pass_time)
            except Exception as error:
                error.add_note(f"in the store check {check.__name__}")
                raise


store_conformance = StoreConformance(
    tuple(
        StoreCheck(body.__name__, body)
        for body in (
            content.an_unknown_key_has_an_empty_record_of_version_0,
            content.a_commit_returns_what_load_returns_and_raises_the_version_by_one,
            content.unset_fields_stay_and_mappings_are_replaced_whole,
            content.all_of_memory_and_entries_comes_back_but_raw_output,
            content.every_text_comes_back_as_it_was,
            content.what_callers_hold_is_apart_from_what_is_kept,
            content.pages_go_backwards_and_forwards,
            content.an_anchor_keeps_pages_from_shifting,
            content.truncation_drops_what_is_behind_an_entry,
            content.visibility_changes_alone,
            content.an_id_is_taken_once,
            content.entries_are_found_by_their_idempotency_key,
            content.forgetting_leaves_nothing,
            content.keys_come_in_order_page_by_page,
            turns.a_conflict_changes_nothing,
            turns.one_of_many_writers_with_the_same_version_wins,
            turns.commits_at_the_same_time_are_all_kept,
            turns.leases_are_exclusive_and_their_tokens_grow,
            turns.a_lease_runs_out,
            turns.a_renewed_lease_lasts_from_its_renewal,
            turns.a_lease_binds_only_those_who_show_a_token,
            turns.an_older_token_is_refused,
            turns.every_method_is_a_checkpoint,
            turns.a_cancelled_commit_is_there_wholly_or_not_at_all,
            turns.a_durable_store_is_found_again,
            turns.it_agrees_with_a_plain_reference,
        )
    )
)
