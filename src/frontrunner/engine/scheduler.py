"""Which rows compute which tokens in the next pass. No tensors here: it also runs in a simulation.

    waiting -> admitted (pages set aside, prefix found) -> prefill in chunks -> decode -> finished
       ^                                                                          |
       +------------- preempted: keeps its tokens, loses its pages ---------------+

One pass holds a token of every decoding row and up to `prefill_tokens` of prompts. Admission is
first come, first served, and a row enters only when the pages that it may come to need fit beside
those set aside for the rows that run. With `reserve` = 1 (all of the answer's limit) nothing is
ever preempted; a smaller share admits more rows, and should they all turn out long, the newest give
way and are computed again later. The oldest row is never preempted, so there is always progress.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from frontrunner.engine.kv_cache import PagePool
from frontrunner.engine.prefill_delayer import PrefillDelayer, PrefillView
from frontrunner.engine.prefix_cache import BLOCK, Cached, Match, PrefixCache
from frontrunner.engine.request import Row
from frontrunner.errors import UserError


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass. `copies` come first, in order, then all tokens at once."""

    singles: list[Row] = field(default_factory=list)
    """Rows that feed one token and sample the next."""
    chunks: list[tuple[Row, int]] = field(default_factory=list)
    """Rows with the number of prompt tokens that they feed."""
    copies: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """Pages to copy: from, to."""

    @property
    def num_tokens(self) -> int:
        return len(self.singles) + sum(count for _, count in self.chunks)

    @property
    def sampling(self) -> list[Row]:
        """Rows that sample a token in this pass: singles, then prompts that are complete."""
        return self.singles + [row for row, count in self.chunks if count == row.num_left]


class Scheduler:
    """Owns the queue, the running rows and their pages."""

    def __init__(
        self,
        pool: PagePool,
        *,
        max_batch: int,
        prefill_tokens: int,
        reserve: float = 1.0,
        mixed: bool = True,
        delayer: PrefillDelayer | None = None,
    ) -> None:
        self.pool, self.prefix = pool, PrefixCache()
        self.max_batch, self.prefill_tokens = max_batch, prefill_tokens
        self.reserve, self.mixed, self.delayer = reserve, mixed, delayer
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.version = 0
        self.counts: Counter[str] = Counter()
        self._clock = 0
        self._prefilled_last = False

    def submit(self, row: Row) -> None:
        """Queue a row; `UserError` if the whole cache could not hold it."""
        pages = self.pool.pages_for(row.num_kept_tokens(1.0))
        if pages > self.pool.num_pages:
            held = self.pool.num_pages * self.pool.page_size
            raise UserError(
                f"request {row.request.request_id} may need {row.num_kept_tokens(1.0)} tokens of "
                f"KV cache, the engine holds {held}; lower max_new_tokens or raise engine.kv_mib"
            )
        if self.delayer:
            self.delayer.arrived(row.arrival_seconds)
        self.waiting.append(row)

    def plan(self, now: float, *, admit: bool = True) -> Plan:
        """The next pass. Rows of it have their pages; `advance` must be called after it."""
        self._clock += 1
        plan = Plan()
        self._grow()
        budget = self.prefill_tokens
        for row in self.running:
            if row.num_left == 1:
                plan.singles.append(row)
            elif budget > 0:
                plan.chunks.append((row, min(row.num_left, budget)))
                budget -= plan.chunks[-1][1]
        if admit and self.waiting:
            self._admit(plan, budget, now)
        if not self.mixed and plan.chunks and plan.singles:
            # Passes of one kind only, in turn, so that neither kind waits for long.
            (plan.singles if not self._prefilled_last else plan.chunks).clear()
        self._prefilled_last = bool(plan.chunks)
        assert plan.num_tokens or not self.running, "rows run, but none has anything to do"
        return plan

    def advance(self, plan: Plan) -> None:
        """Note that the pass was computed. Called before the sampled tokens are appended."""
        for row in plan.singles:
            row.num_computed += 1
        for row, count in plan.chunks:
            row.num_computed += count

    def finish(self, row: Row, now: float) -> None:
        """A running row is done: its pages stay at hand for the next turn."""
        if self.delayer:
            self.delayer.departed(now)
        self.running.remove(row)
        self.prefix.remove(row)
        if row.kv_version != self.version or row.num_computed < BLOCK:
            self._release(row)
            return
        tokens = row.tokens[: row.num_computed]
        needed = self.pool.pages_for(len(tokens))
        self.pool.release(row.pages[needed:])
        PrefixCache.extend(row.chain, tokens, self.version)
        chain = row.chain[: len(tokens) // BLOCK]
        self.prefix.add(Cached(tokens, row.pages[:needed], chain, self._clock))
        row.pages = []

    def preempt(self, row: Row) -> None:
        """Send a running row back to the head of the queue; it keeps every token it has."""
        self.running.remove(row)
        self.prefix.remove(row)
        self._release(row)
        row.num_preempted += 1
        self.counts["preempted"] += 1
        self.waiting.appendleft(row)

    def drop(self, row: Row) -> None:
        """Forget a row, running or waiting, with its pages."""
        if row in self.running:
            self.running.remove(row)
            self.prefix.remove(row)
            self._release(row)
        else:
            self.waiting.remove(row)

    def forget(self, version: int) -> None:
        """Drop all cached prefixes; what is computed from now on belongs to `version`."""
        self.pool.release(self.prefix.clear())
        for row in (*self.running, *self.waiting):
            row.chain = []
        self.version = version
        if self.delayer:
            self.delayer.reset()

    def _release(self, row: Row) -> None:
        self.pool.release(row.pages)
        row.pages = []
        row.num_computed = 0

    def _grow(self) -> None:
        """One more page for every row that comes to the end of its last one."""
        for row in sorted(self.running, key=lambda r: r.number):
            if row.pages and len(row.pages) * self.pool.page_size < row.num_tokens:
                page = self._take(1)
                while page is None:
                    newest = max(self.running, key=lambda r: r.number)
                    self.preempt(newest)
                    if newest is row:
                        break
                    page = self._take(1)
                row.pages += page or []

    def _take(self, count: int, keep: Cached | None = None) -> list[int] | None:
        """Free pages, evicting finished rows where needed; None if that is not enough."""
        while self.pool.num_free < count:
            entry = self.prefix.oldest(keep)
            if entry is None:
                return None
            self.prefix.remove(entry)
            self.pool.release(entry.pages)
            self.counts["evicted"] += 1
        return self.pool.allocate(count)

    def _need(self, row: Row) -> int:
        """Pages to set aside. A row that lost its pages once comes back with all it may need."""
        share = 1.0 if row.resumed else self.reserve
        return max(self.pool.pages_for(row.num_kept_tokens(share)), len(row.pages))

    def _admit(self, plan: Plan, budget: int, now: float) -> None:
        """Move rows from the queue into the pass while rows, tokens and pages last."""
        if len(self.running) >= self.max_batch or budget <= 0:
            return
        committed = sum(self._need(row) for row in self.running)
        blocked = committed + self._need(self.waiting[0]) > self.pool.num_pages
        if self.delayer and not self.delayer.decide(self._view(plan, blocked, committed, now)):
            return
        kept: list[Row] = []
        while self.waiting and len(self.running) < self.max_batch and budget > 0:
            row = self.waiting.popleft()
            need = self._need(row)
            if committed + need > self.pool.num_pages:
                self.counts["blocked_by_kv"] += 1
                self.waiting.appendleft(row)
                break
            match = self._match(row)
            if match and match.length - match.ready >= BLOCK:
                kept.append(row)  # its sibling computes the same prompt right now
                continue
            self._start(row, match, plan)
            committed += need
            count = min(row.num_left, budget)
            budget -= count
            if row.num_left == 1:
                plan.singles.append(row)
            else:
                plan.chunks.append((row, count))
        self.waiting.extendleft(reversed(kept))

    def _match(self, row: Row) -> Match | None:
        PrefixCache.extend(row.chain, row.tokens, self.version)
        return self.prefix.match(row.tokens, row.chain)

    def _start(self, row: Row, match: Match | None, plan: Plan) -> None:
        """Give a row its pages and what is known of its context."""
        total = self.pool.pages_for(row.num_tokens)
        row.kv_version = self.version
        if match and match.whole and isinstance(match.source, Cached):
            self.prefix.remove(match.source)
            row.pages, row.num_computed = match.source.pages, match.length
        elif match and match.ready:
            self._copy(row, match, plan)
        more = self._take(total - len(row.pages))
        assert more is not None, "pages were set aside, but are not there"
        row.pages += more
        row.num_cached = row.num_cached if row.resumed else row.num_computed
        self.counts["reused_tokens"] += row.num_computed
        self.counts["prefilled_tokens"] += row.num_left
        self.prefix.add(row)
        self.running.append(row)

    def _copy(self, row: Row, match: Match, plan: Plan) -> None:
        """Copy what a source has ready, if there is room beside the source."""
        source, count = match.source, self.pool.pages_for(match.ready)
        if isinstance(source, Cached):
            source.last_used = self._clock
        pages = self._take(count, source if isinstance(source, Cached) else None)
        if pages is None:
            return
        plan.copies.append((source.pages[:count], pages))
        row.pages, row.num_computed = list(pages), match.ready

    def _view(self, plan: Plan, blocked: bool, committed: int, now: float) -> PrefillView:
        oldest = self.waiting[0]
        return PrefillView(
            now=now,
            num_running=len(self.running),
            free_rows=self.max_batch - len(self.running),
            num_waiting=len(self.waiting),
            waiting_tokens=sum(row.num_left for row in self.waiting),
            prefill_tokens=self.prefill_tokens,
            oldest=oldest.number,
            oldest_seconds=oldest.arrival_seconds,
            continues=oldest.resumed or bool(plan.chunks),
            blocked_by_kv=blocked,
            usage=committed / self.pool.num_pages,
        )
