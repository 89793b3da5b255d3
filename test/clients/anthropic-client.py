# Calls the server with Anthropic's package for Python: a JSON line in for each call, one out for its
# answer. What may be aborted is called with the package's asynchronous client, all else with the other.
import asyncio
import functools
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import anthropic


@functools.cache
def client_of(kind, url, key, retries):
    options = {} if retries is None else {"max_retries": retries}
    return kind(base_url=url, api_key=key, **options)


def start(kind, call):
    client = client_of(kind, call["url"], call["key"], call.get("retries"))
    # The package has no names for some fields that the API has.
    body = dict(call["body"])
    extra = {name: body.pop(name) for name in ["temperature"] if name in body}
    method = {
        "messages": client.messages.create,
        "final message": client.messages.stream,
        "count tokens": client.messages.count_tokens,
    }[call["method"]]
    return method(**body, extra_body=extra)


def blocking(call):
    result = start(anthropic.Anthropic, call)
    if call["method"] == "final message":
        with result as stream:
            return plain(stream.get_final_message())
    if isinstance(result, anthropic.Stream):
        with result:
            return [plain(event) for event in itertools.islice(result, call.get("take"))]
    return plain(result)


async def abortable(call):
    result = await start(anthropic.AsyncAnthropic, call)
    if isinstance(result, anthropic.AsyncStream):
        return [plain(event) async for event in result]
    return plain(result)


def plain(value):
    """As the server sent it, after the package has read it."""
    return value.model_dump(mode="json", exclude_unset=True, warnings=False)


def described(error):
    response = getattr(error, "response", None)
    told = (getattr(error, "body", None) or {}).get("error", {})
    return {
        "class": type(error).__name__,
        "status": response and response.status_code,
        "code": None,
        "param": None,
        "type": told.get("type"),
        "message": told.get("message"),
        "retryAfter": response and response.headers.get("retry-after"),
        "requestId": getattr(error, "request_id", None),
    }


async def answer(call):
    try:
        if call["abortable"]:
            value = await abortable(call)
        else:
            value = await asyncio.to_thread(blocking, call)
        said = {"value": value}
    except (anthropic.AnthropicError, asyncio.CancelledError) as error:
        said = {"error": described(error)}
    print(json.dumps({"id": call["id"], **said}), flush=True)


async def main():
    # One reads, and 16 calls are to be under way at once.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(17))
    tasks = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        call = json.loads(line)
        if "abort" in call:
            tasks[call["abort"]].cancel()
        else:
            tasks[call["id"]] = asyncio.create_task(answer(call))


asyncio.run(main())
