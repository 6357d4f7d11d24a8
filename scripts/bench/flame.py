"""Where a turn over HTTP spends its CPU, as a flame graph.

    python scripts/bench/flame.py [--turns 1500] [--svg FILE]

The turns of `turns.py`, ours alone, 32 conversations. A timer of CPU time stops the program every millisecond and
notes what it is at, from the task inwards. A frame's width is its share of all samples; hold the pointer over one to
read it. Blue is this project, green the rest of the libraries, grey trio, orange Python's own.
"""

from __future__ import annotations

import argparse
import html
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import trio
from turns import server

from goliath_actors import Agent, ToolLoop, open_runtime, tool
from goliath_actors.models import OpenAIChat

EVERY = 0.001
CONVERSATIONS = 32
WIDTH, ROW = 1200, 17
COLOURS = {"goliath_actors": "#7fb2d9", "trio": "#c4c4c4", "": "#f0b27a"}
OTHER = "#9fcf9f"


@tool
async def weather(city: str) -> str:
    """Tell the weather of a city."""
    await trio.lowlevel.checkpoint()
    return f"sunny in {city}"


async def turns(port: int, count: int) -> Counter[tuple[str, ...]]:
    """Take turns under the timer; the stacks that were seen, outermost frame first."""
    seen: Counter[tuple[str, ...]] = Counter()

    def look(number: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append(_name(frame))
            frame = frame.f_back
        seen[tuple(reversed(stack))] += 1

    agent: Any = Agent(
        name="bench",
        model=OpenAIChat("fake", base_url=f"http://127.0.0.1:{port}/v1", api_key=""),
        tools=[weather],
        instructions="You are a helpful assistant. Use the tool.",
        loop=ToolLoop(),
    )
    async with open_runtime(agent) as runtime:

        async def talk(number: int, times: int) -> None:
            for _ in range(times):
                await runtime.run("What is the weather in Lund?", conversation_id=f"c{number}")

        async def all_talk(times: int) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(CONVERSATIONS):
                    nursery.start_soon(talk, number, times)

        await all_talk(2)
        signal.set_wakeup_fd(-1)  # or every sample would wake trio, which is not what is looked at
        signal.signal(signal.SIGPROF, look)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        await all_talk(max(count // CONVERSATIONS, 1))
        signal.setitimer(signal.ITIMER_PROF, 0)
    return seen


def _name(frame: FrameType) -> str:
    module = str(frame.f_globals.get("__name__", ""))
    return f"{module}:{frame.f_code.co_name}"


def _trimmed(stack: tuple[str, ...]) -> tuple[str, ...]:
    """From the scheduler inwards: what lies around it is the same for all."""
    for place, name in enumerate(stack):
        if name == "trio._core._run:unrolled_run":
            return stack[place:]
    return stack


@attrs.define(eq=False)
class Node:
    """A frame, with all that it called."""

    name: str
    count: int = 0
    inner: dict[str, Node] = attrs.field(factory=dict)

    def add(self, stack: tuple[str, ...], count: int) -> None:
        node = self
        node.count += count
        for name in stack:
            node = node.inner.setdefault(name, Node(name))
            node.count += count


def draw(seen: Counter[tuple[str, ...]], title: str) -> str:
    """Return the graph as SVG. Frames of less than a five-hundredth are left out."""
    root = Node("all")
    for stack, count in seen.items():
        root.add(_trimmed(stack), count)
    boxes: list[tuple[int, float, float, Node]] = []

    def place(node: Node, depth: int, left: float) -> None:
        width = node.count / max(root.count, 1) * WIDTH
        if width < WIDTH / 500:
            return
        boxes.append((depth, left, width, node))
        for inner in sorted(node.inner.values(), key=lambda inner: inner.name):
            place(inner, depth + 1, left)
            left += inner.count / root.count * WIDTH

    place(root, 0, 0.0)
    height = (max(depth for depth, *_ in boxes) + 1) * ROW + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="6" y="18" font-size="13">{html.escape(title)}</text>',
    ]
    for depth, left, width, node in boxes:
        top = 26 + depth * ROW
        module, _, function = node.name.partition(":")
        package = module.split(".")[0]
        known = "" if package in sys.stdlib_module_names or package.startswith("<") else package
        share = node.count / root.count
        text = html.escape(function or node.name)[: max(int(width / 6.2) - 1, 0)]
        lines.append(
            f'<g><title>{html.escape(node.name)} {share:.1%}</title><rect x="{left:.1f}" y="{top}" '
            f'width="{width:.1f}" height="{ROW - 1}" fill="{COLOURS.get(known, OTHER)}"/>'
            f'<text x="{left + 3:.1f}" y="{top + 12}">{text}</text></g>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def shares(seen: Counter[tuple[str, ...]]) -> dict[str, float]:
    """Return the share of samples whose innermost frame of a package lies in it, by package."""
    total: Counter[str] = Counter()
    for stack, count in seen.items():
        module = stack[-1].partition(":")[0]
        parts = module.split(".")
        ours = ".".join(parts[:2]) if parts[:2] == ["goliath_actors", "models"] else parts[0]
        total["python" if parts[0] in sys.stdlib_module_names or not ours else ours] += count
    return {name: count / sum(total.values()) for name, count in total.most_common()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1500, help="default: %(default)s")
    parser.add_argument("--svg", type=Path, default=Path("turn.svg"), help="default: %(default)s")
    options = parser.parse_args()
    with server(0.0) as port:
        seen = trio.run(turns, port, options.turns)
    options.svg.write_text(draw(seen, f"A turn over HTTP: two model calls, one tool ({sum(seen.values())} samples)"))
    for name, share in list(shares(seen).items())[:8]:
        print(f"  {name:<24} {share:6.1%}")


if __name__ == "__main__":
    main()
