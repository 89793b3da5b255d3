# Calls the server with OpenAI's package for Python: a JSON line in for each call, one out for its
# answer. What may be aborted is called with the package's asynchronous client, all else with the other.
import asyncio
import functools
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import openai

METHODS = {
    "chat": lambda client: client.chat.completions.create,
    "completions": lambda client: client.completions.create,
    "embeddings": lambda client: client.embeddings.create,
    "responses": lambda client: client.responses.create,
    "models": lambda client: client.models.list,
    "model": lambda client: client.models.retrieve,
    "upload": lambda client: lambda name, text: client.files.create(
        file=(name, text.encode()), purpose="batch"
    ),
    "files": lambda client: client.files.list,
    "file": lambda client: client.files.retrieve,
    "file content": lambda client: lambda id: client.files.content(id).text,
    "delete file": lambda client: client.files.delete,
    "create batch": lambda client: client.batches.create,
    "batches": lambda client: client.batches.list,
    "batch": lambda client: client.batches.retrieve,
    "cancel batch": lambda client: client.batches.cancel,
}


@functools.cache
def client_of(kind, url, key, retries):
    options = {} if retries is None else {"max_retries": retries}
    return kind(base_url=url, api_key=key, **options)


def start(kind, call):
    client = client_of(kind, call["url"], call["key"], call.get("retries"))
    body, method = call["body"], METHODS[call["method"]](client)
    return method(body) if isinstance(body, str) else method(**body)


def blocking(call):
    result = start(openai.OpenAI, call)
    if isinstance(result, openai.Stream):
        with result:
            return [plain(chunk) for chunk in itertools.islice(result, call.get("take"))]
    return plain(result)


async def abortable(call):
    result = await start(openai.AsyncOpenAI, call)
    if isinstance(result, openai.AsyncStream):
        return [plain(chunk) async for chunk in result]
    return plain(result)


def plain(value):
    """As the server sent it, after the package has read it."""
    if isinstance(value, str):
        return value
    return value.model_dump(mode="json", exclude_unset=True, warnings=False)


def described(error):
    response = getattr(error, "response", None)
    return {
        "class": type(error).__name__,
        "status": response and response.status_code,
        "code": getattr(error, "code", None),
        "param": getattr(error, "param", None),
        "type": getattr(error, "type", None),
        "message": (getattr(error, "body", None) or {}).get("message"),
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
    except (openai.OpenAIError, asyncio.CancelledError) as error:
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
