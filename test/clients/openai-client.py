# Calls the server with OpenAI's package for Python.
import openai
from python_client import run

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


def start(client, call):
    body, method = call["body"], METHODS[call["method"]](client)
    return method(body) if isinstance(body, str) else method(**body)


def told(error):
    fields = {name: getattr(error, name, None) for name in ["code", "param", "type"]}
    return {**fields, "message": (getattr(error, "body", None) or {}).get("message")}


run(openai, "OpenAI", start, told)
