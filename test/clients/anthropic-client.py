# Calls the server with Anthropic's package for Python.
import anthropic
from python_client import run


def start(client, call):
    # The package has no names for some fields that the API has.
    body = dict(call["body"])
    extra = {name: body.pop(name) for name in ["temperature"] if name in body}
    if call["method"] == "final message":
        with client.messages.stream(**body, extra_body=extra) as stream:
            return stream.get_final_message()
    counts = call["method"] == "count tokens"
    method = client.messages.count_tokens if counts else client.messages.create
    return method(**body, extra_body=extra)


def told(error):
    body = (getattr(error, "body", None) or {}).get("error", {})
    return {"type": body.get("type"), "message": body.get("message")}


run(anthropic, "Anthropic", start, told)
