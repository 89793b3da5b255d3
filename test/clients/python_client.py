# What the clients in Python share: a JSON line in for each call, one out for its answer. A call that may be
# aborted goes to the package's asynchronous client, any other to the blocking one.
import asyncio
import functools
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor


@functools.cache
def client_of(kind, url, key, retries):
    options = {} if retries is None else {"max_retries": retries}
    return kind(base_url=url, api_key=key, **options)


def plain(value):
    """As the server sent it, after the package has read it."""
    if isinstance(value, str):
        return value
    return value.model_dump(mode="json", exclude_unset=True, warnings=False)


def described(error, told):
    response = getattr(error, "response", None)
    return {
        "class": type(error).__name__,
        "status": response and response.status_code,
        "code": None,
        "param": None,
        "type": None,
        "message": None,
        "retryAfter": response and response.headers.get("retry-after"),
        "requestId": getattr(error, "request_id", None),
        **told(error),
    }


def run(package, name, start, told):
    """`start` calls a client of the package, whose classes have this name; `told` is what an error's body says."""
    blocking_client, async_client = getattr(package, name), getattr(package, f"Async{name}")

    def begin(kind, call):
        return start(client_of(kind, call["url"], call["key"], call.get("retries")), call)

    def blocking(call):
        result = begin(blocking_client, call)
        if isinstance(result, package.Stream):
            with result:
                return [plain(chunk) for chunk in itertools.islice(result, call.get("take"))]
        return plain(result)

    async def abortable(call):
        result = await begin(async_client, call)
        if isinstance(result, package.AsyncStream):
            return [plain(chunk) async for chunk in result]
        return plain(result)

    async def answer(call):
        try:
            if call["abortable"]:
                value = await abortable(call)
            else:
                value = await asyncio.to_thread(blocking, call)
            said = {"value": value}
        except (getattr(package, f"{name}Error"), asyncio.CancelledError) as error:
            said = {"error": described(error, told)}
        print(json.dumps({"id": call["id"], **said}), flush=True)

    async def main():
        # One thread reads, and 16 calls may be in progress at once.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(17))
        tasks = {}
        while line := await asyncio.to_thread(sys.stdin.readline):
            call = json.loads(line)
            if "abort" in call:
                tasks[call["abort"]].cancel()
            else:
                tasks[call["id"]] = asyncio.create_task(answer(call))

    asyncio.run(main())
