"""An agent that answers from documents over MCP, and says when nothing answers.

    pip install 'attend-retrieval[mcp]'
    attend build examples/intents.csv --data library --id id --text text --value intent
    python examples/agent_mcp.py library "they took the money twice"

It starts `attend mcp` as Claude Desktop does, and gives the tools of the server to a language
model, which calls them until it has an answer. So that the example needs no account, a small
function stands in for the model (`model`): put a call of your own model in its place.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import Any

from mcp import Client, StdioServerParameters

STEPS = 5
"""Calls of tools that an agent makes at most."""


def model(messages: list[dict[str, Any]], tools: list[str]) -> dict[str, Any]:
    """Return the next step as a language model does: the call of a tool, or a text.

    Args:
        messages: the question (`content`), then the results of the tools that were called.
        tools: the names of the tools that may be called.
    """
    question, results = messages[0]["content"], messages[1:]
    if not results:
        if "count_documents" in tools and re.match(r"how many\b", question, re.IGNORECASE):
            return {"tool": "count_documents", "arguments": {"by": ["@value"]}}
        return {"tool": "answer", "arguments": {"question": question}}
    result = results[-1]["content"]
    if "total" in result:
        values = result["facets"]["@value"]
        return {"text": f"{result['total']} documents with {values['distinct']} values."}
    if not result["answered"]:
        return {"text": "Nothing here answers that."}
    passages = [document["text"] for document in result["documents"][:1]]
    return {"text": f"{result['answer']}: {passages[0]!r}"}


async def ask(client: Client, question: str) -> str:
    """Return the agent's answer to a question, with the documents that it read."""
    tools = [tool.name for tool in (await client.list_tools()).tools]
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(STEPS):
        step = model(messages, tools)
        if "tool" not in step:
            sources = [
                document["uri"]
                for message in messages[1:]
                for document in message["content"].get("documents", ())
            ]
            return "\n  ".join([step["text"], *sources])
        result = await client.call_tool(step["tool"], step["arguments"])
        if result.is_error:
            return f"The tool {step['tool']} failed: {result.content[0].text}"
        content = result.structured_content
        messages.append({"role": "tool", "tool": step["tool"], "content": content})
    return "No answer was found in time."


async def main(folder: str, questions: list[str]) -> None:
    """Print an answer to each question."""
    arguments = ["-m", "attend", "mcp", "--data", folder]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    async with Client(server) as client:
        for question in questions:
            print(f"{question}\n  {await ask(client, question)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
